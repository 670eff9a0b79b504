"""What a person gets wrong at a start is refused by its name and with the remedy, never by a traceback."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from cli.hosting.process_commands import BIN, PATHS
from cli.main import main
from tests.conftest import with_database

UP = ("magnus", "up", "--port", "0", "--flower-port", "0")
PLANNER = (sys.executable, "-m", "tasks.planning.planner_process")
BEAT = (sys.executable, "-m", "processes.celery.beat_process")
TRAINER = (sys.executable, "-m", "tasks.training.trainer_process")
WEB = ("gunicorn", "-w1", "-b", "127.0.0.1:0", "webapp.app:create_app()")
WORKER = ("magnus", "worker", "--name", "w1")


@dataclass(frozen=True)
class Mistake:
    """A command with settings, of which one is wrong, and what the refusal must say."""

    what: str
    command: tuple[str, ...]
    said: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)


COMMANDS = [
    Mistake("a budget without its unit", UP, ("MAGNUS_KV_BUDGET", "did you mean 20GiB?"), {"KV_BUDGET": "20"}),
    Mistake("a password to guess", UP, ("MAGNUS_DASHBOARD_PASSWORD", "12"), {"DASHBOARD_PASSWORD": "letmein"}),
    Mistake("no such host", UP, ("MAGNUS_DATABASE_URL",), {"DATABASE_URL": "postgresql://u@host.invalid/d"}),
    Mistake("nobody on that port", UP, ("MAGNUS_DATABASE_URL",), {"DATABASE_URL": "postgresql://u@127.0.0.1:1/d"}),
    Mistake("no such database", UP, ("MAGNUS_DATABASE_URL", "no_such"), {"DATABASE_URL": "{no_database}"}),
    Mistake("no such role", UP, ("MAGNUS_DATABASE_URL", "nobody"), {"DATABASE_URL": "{no_role}"}),
    Mistake(
        "no such schema",
        ("magnus", "migrate"),
        ("search_path",),
        {"DATABASE_URL": "{url_and}options=-csearch_path=foo"},
    ),
    Mistake("an unknown option", UP, ("MAGNUS_DATABASE_URL",), {"DATABASE_URL": "{url_and}sslmodus=on"}),
    Mistake("no right to create", ("magnus", "migrate"), ("migrate --grant",), {"DATABASE_URL": "{weak}"}),
    Mistake("no right to read", ("magnus", "policy", "get"), ("migrate --grant",), {"DATABASE_URL": "{ungranted}"}),
    Mistake("no broker", UP, ("MAGNUS_REDIS_URL",), {"REDIS_URL": "redis://127.0.0.1:1/0"}),
    Mistake("a wrong password", UP, ("password", "MAGNUS_REDIS_URL"), {"REDIS_URL": "{redis_without_password}"}),
    Mistake("an encoder that is not there", UP, ("MAGNUS_ENCODER",), {"ENCODER": "/no/such/encoder"}),
    Mistake("a device that is not there", UP, ("MAGNUS_DEVICES", "cuda:97"), {"DEVICES": "cuda:97"}),
    Mistake(
        "a predictor that asks a server",
        UP,
        ("MAGNUS_PREDICTOR", "perception", "MAGNUS_MODEL"),
        {"PREDICTOR": "perception", "MODEL": "vllm+http://127.0.0.1:1/m"},
    ),
    Mistake("no such model", UP, ("MAGNUS_MODEL",), {"MODEL": "/no/such/model"}),
    Mistake("half a model", UP, ("no weights", "MAGNUS_MODEL"), {"MODEL": "{half_model}"}),
    Mistake("a file in place of the state directory", UP, ("MAGNUS_STATE_DIR",), {"STATE_DIR": "{file}"}),
    Mistake("a directory that nobody can make", UP, ("MAGNUS_STATE_DIR",), {"STATE_DIR": "/proc/nothing"}),
    Mistake("an address of somebody else", UP, ("MAGNUS_HOST",), {"HOST": "host.invalid"}),
    Mistake("a taken port", (*UP[:2], "--port", "{taken}"), ("MAGNUS_PORT", "{taken}")),
]
PROCESSES = [
    Mistake("a planner without a database", PLANNER, ("MAGNUS_DATABASE_URL is not set",)),
    Mistake(
        "a trainer with no such encoder", TRAINER, ("MAGNUS_ENCODER",), {"DATABASE_URL": "{url}", "ENCODER": "/no/e"}
    ),
    Mistake(
        "a trainer whose predictor asks a server",
        TRAINER,
        ("MAGNUS_PREDICTOR", "pia", "vllm+http"),
        {"DATABASE_URL": "{url}", "PREDICTOR": "pia", "MODEL": "vllm+http://127.0.0.1:1/m"},
    ),
    Mistake("a web process without a database", WEB, ("MAGNUS_DATABASE_URL",)),
    Mistake(
        "a web process on a database of another encoding",
        WEB,
        ("encoding is SQL_ASCII", "encoding 'UTF8' template template0"),
        {"DATABASE_URL": "{sql_ascii}"},
    ),
    Mistake("a web process with no such model", WEB, ("/no/m",), {"DATABASE_URL": "{url}", "MODEL": "/no/m"}),
    Mistake("a worker on no such device", (*WORKER, "--device", "cuda:97"), ("cuda:97",), {"DATABASE_URL": "{url}"}),
]


def with_role(url: str, role: str) -> str:
    """The same database's URL for another role, without a password."""
    return make_url(url).set(username=role, password=None).render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def places(
    module_database_url: str, redis_server_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The values of the names in braces in the table of mistakes."""
    directory = tmp_path_factory.mktemp("mistakes")
    (directory / "file").write_text("")
    half = directory / "half"
    half.mkdir()
    (half / "config.json").write_text("{}")
    (half / "model.safetensors").write_text("")
    url = module_database_url
    role = f"weak_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role} login")
        connection.execute(f"create database {role}")
        connection.execute(f"revoke create on schema public from public, {role}")
    with psycopg.connect(with_database(url, role), autocommit=True) as connection:
        connection.execute("revoke create on schema public from public")
        connection.execute(
            f"create database {role}_ascii encoding 'SQL_ASCII' locale 'C' locale_provider libc template template0"
        )
    as_role = with_role(url, role)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield {
            "url": url,
            "url_and": url + ("&" if "?" in url else "?"),
            "no_database": with_database(url, "no_such"),
            "no_role": with_role(url, "nobody"),
            "weak": with_database(as_role, role),
            "ungranted": as_role,
            "sql_ascii": with_database(url, f"{role}_ascii"),
            "redis_without_password": "redis://" + redis_server_url.partition("@")[2],
            "redis": redis_server_url,
            "file": str(directory / "file"),
            "half_model": str(half),
            "taken": str(taken.getsockname()[1]),
        }
    with psycopg.connect(with_database(url, "postgres"), autocommit=True) as connection:
        for name in (role, f"{role}_ascii"):
            connection.execute(f"drop database {name} with (force)")
        connection.execute(f"drop role {role}")


def settings_of(mistake: Mistake, places: dict[str, str], state_dir: Path) -> dict[str, str]:
    filled = {f"MAGNUS_{name}": value.format(**places) for name, value in mistake.settings.items()}
    return {"MAGNUS_STATE_DIR": str(state_dir), "MAGNUS_REDIS_URL": places["redis"], **filled}


@pytest.mark.parametrize("mistake", COMMANDS, ids=lambda mistake: mistake.what)
def test_a_command_refuses_a_mistake_by_its_name(
    mistake: Mistake,
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    for name, value in settings_of(mistake, places, tmp_path / "state").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [part.format(**places) for part in mistake.command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code
    told = capsys.readouterr().err
    for part in mistake.said:
        assert part.format(**places) in told


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mistake", PROCESSES, ids=lambda mistake: mistake.what)
def test_a_process_refuses_a_mistake_by_its_name(mistake: Mistake, places: dict[str, str], tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAGNUS_")}
    environment |= settings_of(mistake, places, tmp_path / "state") | PATHS
    program, *arguments = mistake.command
    command = [program if os.path.isabs(program) else str(BIN / program), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    for part in mistake.said:
        assert part in done.stderr + done.stdout


@pytest.mark.parametrize("command", [WORKER, BEAT], ids=["worker", "beat"])
def test_a_process_whose_database_is_away_says_so_in_a_line_of_its_log(command: tuple[str, ...], tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAGNUS_")} | PATHS
    environment |= {"MAGNUS_DATABASE_URL": "postgresql://127.0.0.1:1/d", "MAGNUS_REDIS_URL": "redis://127.0.0.1:1/0"}
    program, *arguments = command
    command = (program if os.path.isabs(program) else str(BIN / program), *arguments)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 1
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["level"], line["event"]) == ("critical", "not started")
    assert "MAGNUS_DATABASE_URL" in line["why"]


def test_a_settings_file_that_is_no_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / ".env").write_bytes(b"MAGNUS_PORT=80\xff\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["magnus", "status"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.startswith("magnus: `.env` is no UTF-8 text")

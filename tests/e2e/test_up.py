"""The whole service under `magnus up`, and the commands that talk to it, as people run them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil
import psycopg
import pytest
from sqlalchemy import text

from cli.main import main
from inference.local.kv.kv_cache import BLOCK_TOKENS
from models.connections.session import make_engine
from tests.e2e.whole_service import MAGNUS, Up, eventually

NAMES = [
    "postgres",
    "valkey",
    "planner",
    "predictor",
    "chores",
    "flower",
    "worker-1",
    "worker-2",
    "web",
    "beat",
    "trainer",
]

pytestmark = pytest.mark.timeout(300)


Ended = subprocess.CompletedProcess[str]


def magnus(up: Up, *arguments: str) -> Ended:
    """Runs a command in this process, since starting Python would take longer than most commands."""
    command = [MAGNUS, *arguments, "--state-dir", str(up.state_dir)]
    shown, told = StringIO(), StringIO()
    with (
        patch.object(sys, "argv", command),
        redirect_stdout(shown),
        redirect_stderr(told),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Ended(command, int(ended.value.code or 0), shown.getvalue(), told.getvalue())


def in_a_process(up: Up, *arguments: str, input: str | None = None) -> Ended:
    """Runs a command that reads standard input, handles signals, configures logs or computes, as people run it."""
    command = [MAGNUS, *arguments, "--state-dir", str(up.state_dir)]
    return subprocess.run(command, input=input, capture_output=True, text=True)


def said(up: Up, *arguments: str, run: Callable[..., Ended] = magnus, **options: str) -> str:
    done = run(up, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_process_is_listed_with_its_command(up: Up) -> None:
    entries = json.loads((up.state_dir / "processes.json").read_text())
    assert [entry["name"] for entry in entries] == NAMES
    assert all(psutil.pid_exists(entry["pid"]) for entry in entries)
    assert all(set(entry) == {"name", "pid", "command"} for entry in entries)


def test_a_request_is_answered_by_the_bundled_model(up: Up) -> None:
    assert said(up, "submit", "--wait", "-i", "Write each word twice.", "apple river cloud") == (
        "apple apple river river cloud cloud"
    )


def test_requests_from_a_file_are_all_answered(up: Up) -> None:
    lines = [json.dumps({"instructions": "Repeat the text.", "input": word}) for word in ("apple river", "cloud tree")]
    answers = said(up, "submit", "--wait", "--file", "-", input="\n".join(lines), run=in_a_process)
    assert answers.splitlines() == ["apple river", "cloud tree"]


def test_the_state_of_a_request_can_be_asked_for(up: Up) -> None:
    name = said(up, "submit", "-i", "Repeat the text.", "apple river")
    response: dict[str, Any] = json.loads(said(up, "status", "--json", name))
    assert response["id"] == name
    assert name in said(up, "status", name)
    stats: dict[str, Any] = json.loads(said(up, "status", "--json"))
    assert stats["workers"] == 2
    named = said(up, "policy", "get")
    eventually(lambda: json.loads(said(up, "status", "--json"))["policy"] == named)  # in force from the next step on


def test_a_second_up_on_the_directory_is_refused(up: Up) -> None:
    done = subprocess.run([MAGNUS, "up", "--state-dir", up.state_dir], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"already running in {up.state_dir} (process {up.process.pid})" in done.stderr
    assert "--state-dir" in done.stderr


def test_a_taken_port_is_refused_before_anything_starts(up: Up, tmp_path: Path) -> None:
    port = up.facts["url"].rpartition(":")[2]
    command = [MAGNUS, "up", "--state-dir", str(tmp_path), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr
    assert not (tmp_path / "postgres").exists()


def test_keys_are_made_listed_and_revoked(up: Up) -> None:
    made = json.loads(said(up, "keys", "create", "--name", "laptop", "--tenant", "team", "--json"))
    with_key = ["--url", up.facts["url"], "--api-key", made["key"]]
    assert json.loads(said(up, "status", "--json", *with_key))["object"] == "magnus.stats"
    assert made["prefix"] in said(up, "keys", "list")
    assert said(up, "keys", "revoke", made["key"]) == f"revoked {made['prefix']}"
    eventually(lambda: "401" in magnus(up, "status", *with_key).stderr, 5.0)  # a look-up of a key holds for a second
    assert magnus(up, "status", *with_key).returncode == 1
    assert magnus(up, "keys", "revoke", "magnus-nobody").returncode == 1


@pytest.mark.long
def test_a_predictor_is_trained_from_a_file_listed_and_rolled_back(up: Up, tmp_path: Path) -> None:
    lines = [
        json.dumps({"instruction": "Repeat.", "input": f"word {'x ' * (number % 40)}{number}", "output_tokens": size})
        for number in range(200)
        for size in [number % 40 + 3]
    ]
    data = tmp_path / "answers.jsonl"
    data.write_text("\n".join(lines))
    trained = json.loads(said(up, "train", "--data", str(data), "--force", "--json", run=in_a_process))
    assert trained["published"]
    versions = json.loads(said(up, "learned", "list", "--json"))
    newest = next(version for version in versions if version["kind"] == "length")
    assert newest["active"]
    assert said(up, "learned", "activate", newest["version"]) == f"{newest['version']} is in service"
    assert newest["version"] in said(up, "learned", "list")
    assert magnus(up, "learned", "activate", "length-999").returncode == 1


def test_too_few_examples_are_refused_with_the_number_needed(up: Up, tmp_path: Path) -> None:
    data = tmp_path / "answers.jsonl"
    data.write_text(json.dumps({"instruction": "Repeat.", "input": "word", "output": "word"}))
    done = in_a_process(up, "train", "--data", str(data))
    assert done.returncode == 1
    assert "1 examples are too few" in done.stderr


def test_the_doctor_finds_nothing_to_do(up: Up) -> None:
    findings = json.loads(in_a_process(up, "doctor", "--json").stdout)
    assert [finding for finding in findings if finding["remedy"]] == []
    assert {"Postgres", "Redis", "model", "torch"} <= {finding["check"] for finding in findings}


def test_flower_wants_the_password_and_changes_nothing(up: Up) -> None:
    address = f"{up.facts['flower_url']}/workers"
    assert httpx.get(address).status_code == 401
    credentials = (up.facts["dashboard_user"], up.secrets()["dashboard_password"])
    assert httpx.get(address, auth=credentials).status_code == 200
    worker = f"{up.facts['flower_url']}/api/worker/shutdown/planner"
    assert httpx.post(worker, auth=credentials).status_code >= 400


def test_flower_shows_the_ticks_of_beat_and_the_queue_of_each_worker(up: Up) -> None:
    credentials = (up.facts["dashboard_user"], up.secrets()["dashboard_password"])

    def shown(path: str) -> httpx.Response:
        return httpx.get(up.facts["flower_url"] + path, auth=credentials)

    def ended() -> set[str]:
        tasks = shown("/api/tasks").json().values()
        return {task["name"] for task in tasks if task["state"] == "SUCCESS"}

    eventually(lambda: {"tasks.plan", "tasks.predict", "tasks.upkeep"} <= ended())
    eventually(lambda: all(f">{queue}<" in shown("/broker").text for queue in ("plan", "gpu.worker-1")))


def test_a_worker_of_our_own_engine_announces_memory_in_blocks(up: Up) -> None:
    database = make_engine(up.facts["database_url"], pool_size=1)
    with database.connect() as connection:
        announced = connection.execute(
            text("select distinct facts->'memory'->'paged', facts->'memory'->'block_tokens' from workers")
        ).all()
    database.dispose()
    assert announced == [(True, BLOCK_TOKENS)]


def test_a_killed_worker_comes_back_and_serves(up: Up) -> None:
    before = up.listed()
    for name in ("worker-1", "worker-2"):
        os.kill(before[name], signal.SIGKILL)
    eventually(lambda: all(up.listed()[name] != before[name] for name in ("worker-1", "worker-2")))
    assert said(up, "submit", "--wait", "-i", "Repeat the text.", "apple river") == "apple river"


def test_servers_of_ones_own_are_used_and_left_running_and_nothing_outlives_a_ctrl_c(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    own = {"MAGNUS_DATABASE_URL": database_url, "MAGNUS_REDIS_URL": redis_url}
    service = Up(tmp_path / "state", "--workers", "0", "--policy", "scls", **own)
    everyone = service.family()
    try:
        assert list(service.listed()) == ["planner", "predictor", "chores", "flower", "web", "beat", "trainer"]
        assert service.facts["database_url"] == database_url
        assert said(service, "policy", "get") == "scls"
    finally:
        assert service.end(signal.SIGINT) == 0
    assert [process for process in everyone if process.is_running()] == []
    assert service.listed() == {}
    with psycopg.connect(database_url) as connection:
        assert connection.execute("select count(*) from api_keys where revoked_at is null").fetchone() == (1,)


@pytest.mark.parametrize(
    ("setting", "url"),
    [("MAGNUS_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none"), ("MAGNUS_REDIS_URL", "redis://127.0.0.1:9/0")],
)
def test_a_server_that_does_not_answer_is_named(setting: str, url: str, tmp_path: Path) -> None:
    command = [MAGNUS, "up", "--state-dir", str(tmp_path), "--port", "0", "--flower-port", "0"]
    done = subprocess.run(command, env={**os.environ, setting: url}, capture_output=True, text=True)
    assert done.returncode == 3
    assert setting in done.stderr
    assert json.loads((tmp_path / "processes.json").read_text() or "[]") == []


def test_nothing_outlives_a_kill_but_the_state(up: Up) -> None:
    everyone = up.family()
    name = said(up, "submit", "-i", "Repeat the text.", "apple river")
    password = up.secrets()["dashboard_password"]
    up.end(signal.SIGKILL)
    try:
        eventually(lambda: not any(process.is_running() for process in everyone))
    finally:
        up.start()
    eventually(lambda: json.loads(said(up, "status", "--json", name))["status"] == "completed")
    assert up.secrets()["dashboard_password"] == password

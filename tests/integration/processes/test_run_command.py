"""`magnus run` becomes a process of the service, from the `.env` of its working directory, whatever else lies there."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from cli.hosting.process_commands import BIN
from tests.integration.database_stage import Stage, eventually

OUR_NAMES = ("settings", "models", "tasks", "webapp", "celery_config", "celeryconfig", "gunicorn.conf")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def project(tmp_path: Path, database_url: str, redis_url: str) -> Path:
    """A directory with the settings of an installation and modules of our names."""
    for name in OUR_NAMES:
        (tmp_path / f"{name}.py").write_text('raise RuntimeError("a module of the user\'s was imported")\n')
    (tmp_path / ".env").write_text(
        f"MAGNUS_DATABASE_URL={database_url}\nMAGNUS_REDIS_URL={redis_url}\nMAGNUS_DASHBOARD_PASSWORD=a-long-secret\n"
    )
    return tmp_path


def run(process: str, project: Path, **settings: str) -> subprocess.Popen[bytes]:
    with (project / "log").open("wb") as log:
        environment = {**os.environ, **settings}
        return subprocess.Popen([str(BIN / "magnus"), "run", process], cwd=project, env=environment, stderr=log)


def ended(running: subprocess.Popen[bytes]) -> int:
    """The exit status of a process that should end by itself; it is killed if it does not."""
    try:
        return running.wait(60)
    finally:
        running.kill()


@pytest.mark.parametrize("process", ["planner", "predictor", "chores", "beat", "trainer"])
def test_it_is_that_process_and_hears_signals_itself(process: str, project: Path, stage: Stage) -> None:
    with run(process, project) as running:
        try:
            eventually(lambda: stage.sql("select 1 from process_heartbeats"), within_s=60.0)
            ((kind, instance),) = stage.sql("select kind, instance from process_heartbeats")
            assert (kind, instance.rpartition(":")[2]) == (process, str(running.pid))
        finally:
            running.send_signal(signal.SIGTERM)
    assert running.returncode == 0, (project / "log").read_text()


def test_a_hang_up_ends_a_process_as_a_request_to_stop_does(project: Path, stage: Stage) -> None:
    with run("planner", project) as running:
        try:
            eventually(lambda: stage.sql("select 1 from process_heartbeats"), within_s=60.0)
        finally:
            running.send_signal(signal.SIGHUP)
    log = (project / "log").read_text()
    assert (running.returncode, "ImportError" in log) == (0, False), log


@pytest.mark.parametrize(("process", "setting", "path"), [("web", "PORT", "/readyz"), ("flower", "FLOWER_PORT", "/")])
def test_it_listens_where_the_settings_say(process: str, setting: str, path: str, project: Path) -> None:
    port = free_port()

    def answers() -> bool:
        assert running.poll() is None, (project / "log").read_text()
        try:
            return (
                httpx.get(f"http://127.0.0.1:{port}{path}", auth=("magnus", "a-long-secret"), timeout=30).status_code
                == 200
            )
        except httpx.ConnectError:
            return False

    with run(process, project, **{f"MAGNUS_{setting}": str(port)}) as running:
        try:
            eventually(answers, within_s=60.0)
        finally:
            running.send_signal(signal.SIGTERM)


def test_flower_is_not_started_without_a_password(project: Path) -> None:
    with run("flower", project, MAGNUS_DASHBOARD_PASSWORD="") as running:
        assert ended(running) == 1
    assert "MAGNUS_DASHBOARD_PASSWORD" in (project / "log").read_text()


def test_it_needs_database_and_broker(tmp_path: Path) -> None:
    with run("planner", tmp_path) as running:
        assert ended(running) == 2
    assert "planner needs MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL" in (tmp_path / "log").read_text()

"""`magnus demo` end to end: with a service of its own, and against one that loses three of its processes."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from cli.hosting.service_files import running_service
from tests.chaos.breakable_service import ENDINGS
from tests.e2e.whole_service import MAGNUS, Up, eventually

pytestmark = pytest.mark.timeout(400)

REQUESTS = 80


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="magnus-demo-") as directory:
        yield Path(directory) / "state"


@pytest.mark.long
def test_a_demo_of_its_own_answers_every_request_and_leaves_no_process(state_dir: Path, tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    command = [MAGNUS, "demo", "--requests", "60", "--state-dir", str(state_dir), "--json", str(figures_file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(figures_file.read_text())
    assert (figures["requests"], figures["completed"], figures["failed"]) == (60, 60, 0)
    assert set(figures["applications"]) == {"repeat", "translate", "remove", "double", "summarize", "classify"}
    assert all(application in done.stdout for application in figures["applications"])
    assert processes_of(state_dir) == []


@pytest.mark.long
def test_an_interrupted_demo_stops_what_it_started(state_dir: Path) -> None:
    command = [MAGNUS, "demo", "--requests", "5000", "--state-dir", str(state_dir)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as demo:
        eventually(lambda: running_service(state_dir) is not None)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(90) == 130
    assert processes_of(state_dir) == []


def test_a_killed_worker_a_wiped_broker_and_a_crashed_postgres_lose_no_request_and_answer_none_twice(
    up: Up, tmp_path: Path
) -> None:
    running = running_service(up.state_dir)
    assert running is not None
    figures_file = tmp_path / "figures.json"
    target = ["--url", up.url, "--api-key", up.key, "--json", str(figures_file)]
    command = [MAGNUS, "demo", "--requests", str(REQUESTS), "--rate", "20", "--seed", "7", *target]
    with psycopg.connect(running.database_url) as connection:
        connection.execute(ENDINGS)

    def endings() -> tuple[int, int]:
        with psycopg.connect(running.database_url) as connection:
            row = connection.execute("select count(*), count(distinct id) from endings").fetchone()
        assert row
        return row[0], row[1]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        eventually(lambda: endings()[0] > REQUESTS // 10)
        os.kill(up.pid("worker-1"), signal.SIGKILL)
        eventually(lambda: endings()[0] > REQUESTS // 4)
        with redis.Redis.from_url(running.redis_url) as broker:
            broker.flushall()
        eventually(lambda: endings()[0] > REQUESTS // 2)
        os.kill(up.pid("postgres"), signal.SIGQUIT)  # ends every session at once and flushes nothing
        shown, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, shown
    figures = json.loads(figures_file.read_text())
    assert (figures["completed"], figures["failed"]) == (REQUESTS, 0)
    assert endings() == (REQUESTS, REQUESTS)


def processes_of(state_dir: Path) -> list[psutil.Process]:
    """Processes that carry the state directory in their command or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(state_dir) in value for value in [*process.cmdline(), *process.environ().values()]):
                found.append(process)
        except psutil.Error:
            continue
    return found

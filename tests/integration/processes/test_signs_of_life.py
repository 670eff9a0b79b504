"""The supervisor with real children that fall silent, are stopped, or leave something behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import psutil
import psycopg
import pytest

from cli.hosting import signs_of_life, supervisor
from cli.hosting.child_process import ChildProgram, start, stop
from cli.hosting.readiness import await_ready
from cli.hosting.signs_of_life import Question, postgres_question, redis_question
from cli.hosting.supervisor import Supervisor
from tests.integration.processes.test_supervisor import eventually, listed
from tests.quick_postgres import quick_postgres

# Sends pulses like every process of the service, until the file given as argument exists: then it hangs.
PULSING = """
import pathlib, sys, threading
from processes.signs_of_life import Pulse
Pulse(lambda: not pathlib.Path(sys.argv[1]).exists()).start()
print("here", flush=True)
threading.Event().wait()
"""
PARENT = """
import pathlib, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
threading.Event().wait()
"""


@contextmanager
def watched(state_dir: Path, program: ChildProgram) -> Iterator[list[str]]:
    """A supervisor that watches in a thread; yields what it reported so far."""
    said: list[str] = []
    with Supervisor(state_dir, said.append) as supervising:
        supervising.start(program)
        watching = Thread(target=supervising.watch)
        watching.start()
        try:
            yield said
        finally:
            signal.raise_signal(signal.SIGTERM)
            watching.join()


def test_a_program_that_hangs_is_killed_and_started_again(tmp_path: Path):
    hang = tmp_path / "hang"
    log = tmp_path / "logs" / "one.log"
    program = ChildProgram(
        "one",
        (sys.executable, "-c", PULSING, str(hang)),
        cwd=Path(__file__).parents[3],
        ready=lambda: "here" in log.read_text(),
        alive_within_s=3.0,
    )
    with watched(tmp_path, program) as said:
        first = listed(tmp_path)["one"]
        hang.touch()
        eventually(lambda: any("no sign of life" in line for line in said))
        hang.unlink()
        eventually(lambda: listed(tmp_path)["one"] != first)
        assert not psutil.pid_exists(first)


def test_a_stopped_program_and_what_it_started_go_on(tmp_path: Path):
    file = tmp_path / "pid"
    program = ChildProgram("one", (sys.executable, "-c", PARENT, str(file)), ready=lambda: bool(pid_in(file)))
    with watched(tmp_path, program) as said:
        both = [psutil.Process(listed(tmp_path)["one"]), psutil.Process(pid_in(file))]
        for process in both:
            process.suspend()
        eventually(lambda: len([line for line in said if "goes on" in line]) == 2)
        assert all(process.status() != psutil.STATUS_STOPPED for process in both)
        assert listed(tmp_path)["one"] == both[0].pid  # it was not replaced


def test_what_a_killed_program_leaves_behind_is_killed_even_if_it_is_stopped(tmp_path: Path):
    file = tmp_path / "pid"
    program = ChildProgram("one", (sys.executable, "-c", PARENT, str(file)), ready=lambda: bool(pid_in(file)))
    with watched(tmp_path, program) as said:
        left = psutil.Process(pid_in(file))
        left.suspend()
        eventually(lambda: any("goes on" in line for line in said))  # so it has been seen
        left.suspend()
        psutil.Process(listed(tmp_path)["one"]).kill()
        eventually(lambda: not left.is_running())


def test_a_frozen_program_is_stopped_within_its_time(tmp_path: Path):
    program = ChildProgram("one", (sys.executable, "-c", "import signal; signal.pause()"), stop_within_s=60.0)
    with Supervisor(tmp_path, print) as supervising:
        supervising.start(program)
        frozen = psutil.Process(listed(tmp_path)["one"])
        frozen.suspend()
    assert not frozen.is_running()  # by its stop signal, long before 60 s


def test_servers_answer_their_questions_without_a_password_and_a_frozen_one_does_not(
    postgres_url: str, redis_server_url: str, monkeypatch: pytest.MonkeyPatch
):
    with psycopg.connect(postgres_url) as connection:
        socket = connection.execute(
            "select current_setting('unix_socket_directories') || '/.s.PGSQL.' || current_setting('port')"
        ).fetchone()
    assert socket is not None
    assert postgres_question(socket[0]).is_answered()
    port = int(redis_server_url.rpartition(":")[2].partition("/")[0])
    assert redis_question("127.0.0.1", port).is_answered()
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True) as silent:
        assert silent.stdout is not None
        monkeypatch.setattr(signs_of_life, "ANSWER_WITHIN_S", 0.5)
        assert not Question(("127.0.0.1", int(silent.stdout.readline())), b"?").is_answered()
        silent.kill()


def test_a_postgres_that_waits_for_its_sessions_to_end_counts_as_silent(tmp_path: Path):
    server = quick_postgres(tmp_path / "postgres")
    program, question = server.program, server.program.question
    assert question is not None
    process = start(program, tmp_path / "log")
    try:
        await_ready(program, process, tmp_path / "log")
        with psycopg.connect(server.url, dbname="postgres") as session:
            assert question.is_answered()
            process.terminate()  # "smart": no new sessions, and it waits for this one
            eventually(lambda: not question.is_answered())
            session.execute("select 1")
    finally:
        stop((program, process))


LISTENER = """
import signal, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
signal.pause()
"""


def pid_in(file: Path) -> int:
    return int(file.read_text() or 0) if file.exists() else 0


@pytest.fixture(autouse=True)
def repository_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture(autouse=True)
def soon_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CHECK_S", 0.1)


# Hangs as soon as it is ready; writes the stop signal that it gets into a file, and ends only if told to.
HANGING = """
import pathlib, signal, sys
def stopped(number, frame):
    pathlib.Path(sys.argv[1]).write_text(signal.Signals(number).name)
    if sys.argv[2] == "ends":
        sys.exit()
signal.signal(signal.SIGTERM, stopped)
from processes.signs_of_life import PULSE_FD
import os
os.write(int(os.environ[PULSE_FD]), b".")
print("here", flush=True)
while True:
    signal.pause()
"""


def hanging(directory: Path, name: str, how: str = "ends", *, keeps_data: bool = False) -> ChildProgram:
    log = directory / "logs" / f"{name}.log"
    return ChildProgram(
        name,
        (sys.executable, "-c", HANGING, str(directory / name), how),
        cwd=Path(__file__).parents[3],
        ready=lambda: "here" in log.read_text(),
        alive_within_s=1.0,
        keeps_data=keeps_data,
    )


@pytest.mark.parametrize("how", ["ends", "stays"])
def test_a_silent_server_with_data_is_asked_to_end_before_it_is_killed(tmp_path: Path, how: str):
    with watched(tmp_path, hanging(tmp_path, "database", how, keeps_data=True)) as said:
        first = listed(tmp_path)["database"]
        eventually(lambda: listed(tmp_path)["database"] != first)
        assert (tmp_path / "database").read_text() == "SIGTERM"
        assert sum("no sign of life" in line for line in said) == (1 if how == "ends" else 2)


def test_while_others_are_silent_a_server_with_data_is_left_alone(tmp_path: Path):
    said: list[str] = []
    with Supervisor(tmp_path, said.append) as supervising:
        supervising.start(hanging(tmp_path, "database", keeps_data=True), hanging(tmp_path, "one"))
        pids = listed(tmp_path)
        watching = Thread(target=supervising.watch)
        watching.start()
        eventually(lambda: listed(tmp_path)["one"] != pids["one"])
        assert not any("database" in line for line in said)
        assert psutil.pid_exists(pids["database"])
        signal.raise_signal(signal.SIGTERM)
        watching.join()


def test_the_supervisors_own_lateness_is_no_silence_of_its_children(tmp_path: Path):
    said: list[str] = []
    hang = tmp_path / "hang"
    log = tmp_path / "logs" / "one.log"
    command = (sys.executable, "-c", PULSING, str(hang))
    program = ChildProgram(
        "one", command, cwd=Path(__file__).parents[3], ready=lambda: "here" in log.read_text(), alive_within_s=1.0
    )
    with Supervisor(tmp_path, said.append) as supervising:
        supervising.start(program)
        hang.touch()
        for _ in range(3):  # turns 0.5 s apart, as on a host that is overloaded; each counts as 0.3 s
            Event().wait(0.5)
            supervising.turn()
        assert said == []

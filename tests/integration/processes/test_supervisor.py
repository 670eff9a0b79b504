"""The supervisor with real children: what it restarts, refuses, and leaves behind (nothing)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cli.hosting.child_process import ChildProgram, ProgramFailed
from cli.hosting.state_lock import AlreadyRunning
from cli.hosting.supervisor import Stopped, Supervisor

SLEEPER = (sys.executable, "-c", "import signal; signal.pause()")
SUPERVISING = """
import sys, pathlib
from cli.hosting.child_process import ChildProgram
from cli.hosting.supervisor import Supervisor
child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
with Supervisor(pathlib.Path(sys.argv[1]), print) as supervisor:
    supervisor.start(*(ChildProgram(name, (sys.executable, "-c", child)) for name in "ab"))
    print("up", flush=True)
    supervisor.watch()
"""


def sleeper(name: str = "sleeper") -> ChildProgram:
    return ChildProgram(name, SLEEPER)


def listed(state_dir: Path) -> dict[str, int]:
    return {entry["name"]: entry["pid"] for entry in json.loads((state_dir / "processes.json").read_text())}


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The supervisor's children and grandchildren, once all four run."""
    parent = psutil.Process(process.pid)
    eventually(lambda: len(parent.children(recursive=True)) == 4)
    return parent.children(recursive=True)


@pytest.fixture
def supervising(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", SUPERVISING, tmp_path], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        everyone = family(process)
        yield process
        if process.poll() is None:
            everyone += psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for one in everyone:  # grandchildren outlive a killed supervisor
        with suppress(psutil.NoSuchProcess):
            one.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_children_and_grandchildren(
    supervising: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    everyone = family(supervising)
    supervising.send_signal(number)
    assert supervising.wait(20) == 0
    assert not any(process.is_running() for process in everyone)
    assert listed(tmp_path) == {}


def test_children_die_with_a_killed_supervisor_and_the_next_one_starts_as_usual(
    supervising: subprocess.Popen[str], tmp_path: Path
) -> None:
    children = [psutil.Process(pid) for pid in listed(tmp_path).values()]
    supervising.kill()
    eventually(lambda: not any(child.is_running() for child in children))
    with Supervisor(tmp_path, print) as supervisor:
        supervisor.start(sleeper())
        assert list(listed(tmp_path)) == ["sleeper"]


def test_what_outlived_a_killed_supervisor_is_stopped_by_the_next(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPER) as survivor, subprocess.Popen([*SLEEPER, "other"]) as stranger:
        command = " ".join([SLEEPER[0], "-c", f"'{SLEEPER[2]}'"])
        entries = [{"name": name, "pid": p.pid, "command": command} for name, p in [("a", survivor), ("b", stranger)]]
        (tmp_path / "processes.json").write_text(json.dumps(entries))
        reported: list[str] = []
        threading.Thread(target=survivor.wait).start()  # its parent, this test, has to collect it
        with Supervisor(tmp_path, reported.append):
            pass
        survivor.wait(10)  # its status goes to whichever waited first, this test or the supervisor
        assert stranger.poll() is None  # the pid of another command by now
        assert reported == [f"stopping process {survivor.pid}, left behind by a killed `magnus up`"]
        stranger.kill()


def test_a_second_supervisor_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    with Supervisor(tmp_path, print), pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"):
        Supervisor(tmp_path, print).__enter__()
    with Supervisor(tmp_path, print):
        pass


def test_a_killed_child_is_restarted_under_its_name(supervising: subprocess.Popen[str], tmp_path: Path) -> None:
    family(supervising)
    before = listed(tmp_path)
    os.kill(before["a"], signal.SIGKILL)
    eventually(lambda: listed(tmp_path)["a"] != before["a"])
    assert listed(tmp_path)["b"] == before["b"]
    eventually(lambda: psutil.pid_exists(listed(tmp_path)["a"]))
    family(supervising)  # the new child's own child runs, too, so that the end of the test finds it


def test_a_program_that_ends_before_it_is_ready_fails_the_start_with_its_last_words(tmp_path: Path) -> None:
    broken = ChildProgram("broken", (sys.executable, "-c", "print('no such model')"), ready=lambda: False)
    with Supervisor(tmp_path, print) as supervisor, pytest.raises(ProgramFailed, match="no such model"):
        supervisor.start(sleeper(), broken)
    assert listed(tmp_path) == {}


def test_a_program_that_is_never_ready_fails_the_start(tmp_path: Path) -> None:
    late = ChildProgram("late", SLEEPER, ready=lambda: False, ready_within_s=0.1)
    with Supervisor(tmp_path, print) as supervisor, pytest.raises(ProgramFailed, match="not ready within"):
        supervisor.start(late)


def test_a_signal_during_the_start_ends_the_start(tmp_path: Path) -> None:
    def interrupt() -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    with Supervisor(tmp_path, print) as supervisor, pytest.raises(Stopped):
        supervisor.start(ChildProgram("slow", SLEEPER, ready=interrupt))
    assert listed(tmp_path) == {}


def test_a_program_that_ignores_the_stop_signal_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    log = tmp_path / "logs" / "deaf.log"
    deaf = ChildProgram(
        "deaf", (sys.executable, "-c", code), ready=lambda: "deaf" in log.read_text(), stop_within_s=0.2
    )
    with Supervisor(tmp_path, print) as supervisor:
        supervisor.start(deaf)
        pid = listed(tmp_path)["deaf"]
    assert not psutil.pid_exists(pid)


def test_what_a_program_starts_while_it_ends_is_killed_with_it(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "parent.log"
    code = """
import signal, subprocess, sys
def end(*_):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print("child", child.pid, flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("here", flush=True)
signal.pause()
"""
    parent = ChildProgram("parent", (sys.executable, "-c", code), ready=lambda: "here" in log.read_text())
    with Supervisor(tmp_path, print) as supervisor:
        supervisor.start(parent)
    (child,) = (int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("child"))
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_a_nice_program_lets_others_go_first_also_where_sessions_share_the_cpus(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "nice.log"
    code = "import signal; print('here', flush=True); signal.pause()"
    nice = ChildProgram("nice", (sys.executable, "-c", code), nice=7, ready=lambda: "here" in log.read_text())
    with Supervisor(tmp_path, print) as supervisor:
        supervisor.start(nice)
        pid = listed(tmp_path)["nice"]
        session = Path(f"/proc/{pid}/autogroup")
        assert psutil.Process(pid).nice() == psutil.Process().nice() + 7
        assert not session.exists() or session.read_text().endswith(" nice 7\n")


def test_a_log_that_grew_too_long_is_rotated_once_and_written_on(tmp_path: Path, supervising: object) -> None:
    log = tmp_path / "logs" / "a.log"
    with log.open("ab") as child:
        child.write(b"x" * (17 * 2**20))
        child.flush()
        eventually(lambda: log.stat().st_size == 0)
        child.write(b"on")
    assert log.read_bytes() == b"on"
    assert log.with_suffix(".log.1").stat().st_size == 17 * 2**20

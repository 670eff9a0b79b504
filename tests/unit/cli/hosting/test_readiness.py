"""The wait for a program ends when it is ready, when it is interrupted, when it ends, and when it takes too long."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.hosting.child_process import ChildProgram, ProgramFailed, SettingRefused
from cli.hosting.readiness import await_ready, broker_answers

SLEEPER = (sys.executable, "-c", "import signal; signal.pause()")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPER) as process:
        yield process
        process.kill()


def test_a_program_is_asked_until_it_is_ready(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    answers = iter([False, False, True])
    await_ready(ChildProgram("late", SLEEPER, ready=lambda: next(answers)), process, tmp_path / "log")
    assert list(answers) == []


def test_an_interrupted_wait_returns(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    never_ready = ChildProgram("slow", SLEEPER, ready=lambda: False)
    await_ready(never_ready, process, tmp_path / "log", interrupted=lambda: True)


def test_a_program_that_takes_too_long_is_an_error_with_the_end_of_its_log(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {n}" for n in range(10)))
    slow = ChildProgram("slow", SLEEPER, ready=lambda: False, ready_within_s=-1.0)
    with pytest.raises(ProgramFailed, match="slow was not ready within") as caught:
        await_ready(slow, process, log)
    assert "line 9" in str(caught.value)
    assert "line 1\n" not in str(caught.value)


def test_a_program_that_ended_is_an_error_with_its_exit_status(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as ended:
        ended.wait()
        with pytest.raises(ProgramFailed, match="ended with 3"):
            await_ready(ChildProgram("broken", SLEEPER, ready=lambda: False), ended, tmp_path / "log")


def test_a_program_that_cannot_use_a_setting_is_an_error_of_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("{}\nmagnus: an older reason\n  a traceback\nmagnus: m cannot be served: it has no weights\n{}\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"]) as ended:
        ended.wait()
        with pytest.raises(SettingRefused) as caught:
            await_ready(ChildProgram("worker-1", SLEEPER, ready=lambda: False), ended, log)
    assert str(caught.value) == "worker-1: m cannot be served: it has no weights"


def test_what_is_no_address_of_a_broker_does_not_answer() -> None:
    assert not broker_answers("nonsense")

"""The wait for a program ends when it is ready, when it is interrupted, when it ends, and when it takes too long."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.hosting.child_process import ChildProgram, SettingRefused
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


def test_a_program_that_cannot_use_a_setting_is_an_error_of_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("{}\nmagnus: an older reason\n  a traceback\nmagnus: m cannot be served: it has no weights\n{}\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"]) as ended:
        ended.wait()
        with pytest.raises(SettingRefused) as caught:
            await_ready(ChildProgram("worker-1", SLEEPER, ready=lambda: False), ended, log)
    assert str(caught.value) == "worker-1: m cannot be served: it has no weights"


def test_a_wait_says_once_for_what_it_waits_and_why(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    log, said = tmp_path / "log", list[str]()
    log.write_text('{"event": "of an earlier run"}\n')
    reason = '{"event": "not usable yet", "error": "no ids", "timestamp": N}\n'
    lines = iter(["", *(reason.replace("N}", f"{n}}}") for n in range(3))])

    def ready() -> bool:
        line = next(lines, None)
        with log.open("a") as written:
            written.write(line or "")
        return line is None

    await_ready(ChildProgram("engine-1", SLEEPER, ready=ready), process, log, say=said.append, say_every_s=0.0)
    assert said == [
        f"still waiting for engine-1; see {log}",
        f"still waiting for engine-1: not usable yet: no ids; see {log}",
    ]


def test_what_is_no_address_of_a_broker_does_not_answer() -> None:
    assert not broker_answers("nonsense")

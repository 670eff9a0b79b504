"""One child process: how it is started, known to be ready, and stopped with everything that it started itself."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LAUNCH = Path(__file__).with_name("launch.py")


class ProgramFailed(Exception):
    """A child that ended, or did not become ready in time, with the last lines that it wrote."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        self.name, self.log = name, log
        lines = log.read_text(errors="replace").splitlines()[-8:] if log.exists() else []
        super().__init__("\n".join([f"{name} {what}; the end of {log}:", *(f"    {line}" for line in lines)]))


def _always() -> bool:
    return True


def _never() -> bool:
    return False


@dataclass(frozen=True)
class ChildProgram:
    """What to run; `ready` is asked until true. Left alone by its parent's death it gets `orphan_signal` (Linux)."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    user: tuple[int, int] | None = None  # uid and gid
    nice: int = 0
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL
    stop_within_s: float = 10.0
    ready: Callable[[], bool] = _always
    ready_within_s: float = 60.0


def start(program: ChildProgram, log: Path) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own, writing to `log`."""
    uid, gid = program.user or (-1, -1)
    executable = shutil.which(program.command[0]) or program.command[0]
    launcher = [sys.executable, "-I", "-S", str(LAUNCH)]
    arguments = [str(os.getpid()), str(int(program.orphan_signal)), str(program.nice), str(uid), str(gid)]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603
            [*launcher, *arguments, executable, *program.command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=program.cwd,
            env={**os.environ, **program.env},
            start_new_session=True,
        )


def await_ready(
    program: ChildProgram, process: subprocess.Popen[bytes], log: Path, interrupted: Callable[[], bool] = _never
) -> None:
    """Return once the program says that it is ready, or once interrupted; raises ProgramFailed if it ends before."""
    deadline = time.monotonic() + program.ready_within_s
    while not interrupted() and not program.ready():
        if process.poll() is not None:
            raise ProgramFailed(program.name, f"ended with {process.returncode}", log)
        if time.monotonic() > deadline:
            raise ProgramFailed(program.name, f"was not ready within {program.ready_within_s:.0f} s", log)
        time.sleep(0.02)


def stop(*running: tuple[ChildProgram, subprocess.Popen[bytes]]) -> None:
    """Ask them all to stop at once, then make those that do not, together with every process that they started."""
    family = {child for _, process in running for child in _descendants(process.pid)}
    for program, process in running:
        if process.poll() is None:
            process.send_signal(program.stop_signal)
    asked_at = time.monotonic()
    for program, process in running:
        try:
            process.wait(max(0.0, asked_at + program.stop_within_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            family |= _descendants(process.pid)
            process.kill()
            process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # psutil notices a pid that has been given to somebody else
            child.kill()
    psutil.wait_procs(list(family), timeout=5)


def _descendants(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()

"""One child process: starts it, and stops it together with everything that it started itself."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from cli.entry_point import OUR_MODULES
from cli.hosting.cpu_waits import cpu_waits
from cli.hosting.signs_of_life import Asking, Pipe, Question, Silence
from cli.output import CommandFailed, WrongSetting
from processes.signs_of_life import PULSE_FD

LAUNCH = OUR_MODULES / "processes" / "launch.py"  # run by path, because `python -I -S` finds no package of ours
SAID_BY_US = ("magnus: ", "Error: ")  # beginnings of the error line that our commands print last
LOG_LINES_SHOWN = 8  # last lines of a failed program's log, enough for the end of a traceback


class ProgramFailed(CommandFailed):
    """A child ended, or did not become ready in time; the message has the last lines of its log."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:] if log.exists() else []
        end = f"the end of {log}:" if lines else f"it wrote nothing into {log}"
        super().__init__("\n".join([f"{name} {what}; {end}", *(f"    {line}" for line in lines)]))


class SettingRefused(WrongSetting):
    """A child ended because it cannot use a setting or a model; the message is its log's line that says so."""

    def __init__(self, name: str, log: Path) -> None:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(SAID_BY_US)]
        why = said[-1].partition(": ")[2] if said else f"see {log}"
        super().__init__(why if why.startswith(("worker-", "engine-")) else f"{name}: {why}")


@dataclass(frozen=True)
class ChildProgram:
    """A program to run. `ready` is called until it returns True; `orphan_signal` comes when the parent dies (Linux)."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    user: tuple[int, int] | None = None  # uid and gid
    nice: int = 0
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL
    stop_within_s: float = 10.0
    ready: Callable[[], bool] = lambda: True
    ready_within_s: float = 60.0
    alive_within_s: float | None = None  # a child silent for longer counts as frozen; None: it gives no signs of life
    question: Question | None = None  # asked again and again; None: the child sends pulses by itself
    keeps_data: bool = False  # a frozen child is ended after all others, and gets its stop signal before SIGKILL


@dataclass(frozen=True)
class StartedChild:
    """A running program; `silence` is None if the program sends no signs of life."""

    process: subprocess.Popen[bytes]
    silence: Silence | None


def start_listening(program: ChildProgram, log: Path) -> StartedChild:
    """Start the program and listen to its signs of life."""
    if program.alive_within_s is None:
        return StartedChild(start(program, log), None)
    bounds = program.alive_within_s, program.ready_within_s
    if program.question is not None:
        process = start(program, log)
        return StartedChild(process, Silence(Asking(program.question), *bounds, partial(cpu_waits, process.pid)))
    pipe = Pipe()
    try:
        process = start(program, log, pipe.child_end)
    except OSError:
        pipe.close()
        raise
    finally:
        pipe.handed_over()
    return StartedChild(process, Silence(pipe, *bounds, partial(cpu_waits, process.pid)))


def start(program: ChildProgram, log: Path, pulse_fd: int | None = None) -> subprocess.Popen[bytes]:
    """Start the program in a session of its own; its output is appended to `log`, its pulses go to `pulse_fd`."""
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
            env={**os.environ, **program.env} | ({} if pulse_fd is None else {PULSE_FD: str(pulse_fd)}),
            pass_fds=() if pulse_fd is None else (pulse_fd,),
            start_new_session=True,
        )


@contextlib.contextmanager
def running(program: ChildProgram, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program, and stop it at the end of the block, also after an error."""
    process = start(program, log)
    try:
        yield process
    finally:
        stop((program, process))


def stop(*programs: tuple[ChildProgram, subprocess.Popen[bytes]]) -> None:
    """Send each program its stop signal, kill programs that do not end in time, and kill what any of them started.

    Frozen processes are resumed, so that the signal reaches them.
    """
    descendants = {child for _, process in programs for child in _descendants(process.pid)}
    running = [process for _, process in programs if process.poll() is None]
    for program, process in programs:
        if process in running:
            process.send_signal(program.stop_signal)
            process.send_signal(signal.SIGCONT)
    for child in descendants:
        with contextlib.suppress(psutil.Error):
            child.resume()
    signalled_at = time.monotonic()
    for program, process in programs:
        try:
            process.wait(max(0.0, signalled_at + program.stop_within_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            descendants |= _descendants(process.pid)
            process.kill()
            process.wait()
        if process in running:  # kills what it started while it ended, at once: later its number may be another's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    for child in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, or its pid belongs to another process
            child.kill()
    psutil.wait_procs(list(descendants), timeout=5)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and everything that it started, without waiting; a frozen process cannot end its children."""
    descendants = _descendants(process.pid)
    process.kill()
    for child in descendants:
        with contextlib.suppress(psutil.Error):
            child.kill()


def _descendants(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()

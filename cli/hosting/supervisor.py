"""Keeps the service's processes up: starts them in order, restarts one that dies, stops all in reverse order.

Nothing is left behind: every child has a session of its own, dies with its supervisor even under SIGKILL (Linux), and
what survived anyway is found in `processes.json` and stopped by the next supervisor of the same state directory.
"""

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import psutil

from cli.hosting import child_process as programs
from cli.hosting.child_process import ChildProgram

LOG_BYTES = 16 * 2**20  # then the log becomes `<name>.log.1` and a new one starts
HEALTHY_S = 30.0  # a child that ran for so long starts its backoff anew
POLL_S = 0.1


class AlreadyRunning(Exception):
    """A second supervisor on a state directory that one holds already."""

    def __init__(self, state_dir: Path, holder: str) -> None:
        self.state_dir, self.holder = state_dir, holder
        super().__init__(
            f"Magnus is already running in {state_dir} (process {holder or 'unknown'}); "
            "stop it first, or choose another --state-dir"
        )


class Stopped(Exception):
    """A signal asked the supervisor to stop while it was starting something."""


def stop_signals() -> list[signal.Signals]:
    """Signals that ask to stop; SIGHUP is none under nohup."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if nohup else [signal.SIGHUP])]


def restart_delay_s(failures: int) -> float:
    """Seconds to wait before the restart after so many failures in a row: 0.1, 0.2, 0.4, at most 10."""
    return min(0.1 * 2.0 ** min(failures - 1, 10), 10.0)


@dataclass
class Child:
    """A program under supervision; `restart_at` is set while it is down."""

    program: ChildProgram
    log: Path
    process: subprocess.Popen[bytes]
    started_at: float
    failures: int = 0
    restart_at: float | None = None


class Supervisor:
    """A context: entering takes the lock of the state directory, leaving stops every child, whatever happened."""

    def __init__(self, state_dir: Path, say: Callable[[str], None]) -> None:
        """`say` gets one line for each event that an operator wants to read."""
        self.state_dir = state_dir
        self.logs = state_dir / "logs"
        self._say = say
        self._layers: list[list[Child]] = []
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.state_dir)
        self._handlers = {number: signal.signal(number, self._on_signal) for number in stop_signals()}
        try:
            self._stop_survivors()
            self._write_processes()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            while self._layers:
                layer = self._layers[-1]
                programs.stop(*((child.program, child.process) for child in layer))
                self._layers.pop()
                self._write_processes()
        finally:
            self._release()

    def start(self, *layer: ChildProgram) -> None:
        """Start these together and return once all are ready; they will be stopped together, before earlier layers.

        Raises ProgramFailed if one ends or is not ready in time, Stopped if a signal came.
        """
        self.go_on()
        children: list[Child] = []
        self._layers.append(children)
        for program in layer:
            log = self.logs / f"{program.name}.log"
            children.append(Child(program, log, programs.start(program, log), time.monotonic()))
            self._write_processes()
        for child in children:
            programs.await_ready(child.program, child.process, child.log, interrupted=self._stopping.is_set)
        self.go_on()

    def go_on(self) -> None:
        """Raise Stopped once a signal came."""
        if self._stopping.is_set():
            raise Stopped

    def watch(self) -> None:
        """Restart whatever dies until a signal asks to stop."""
        while not self._stopping.wait(POLL_S):
            now = time.monotonic()
            for child in self._children():
                self._mend(child, now)
                _rotate(child.log)

    def _mend(self, child: Child, now: float) -> None:
        if child.restart_at is None:
            if child.process.poll() is None:
                return
            child.failures = 1 if now - child.started_at > HEALTHY_S else child.failures + 1
            child.restart_at = now + restart_delay_s(child.failures)
            self._say(f"{child.program.name} ended with {child.process.returncode}, restarting; see {child.log}")
        elif now >= child.restart_at:
            try:
                child.process = programs.start(child.program, child.log)
            except OSError as error:  # no memory, no file descriptors: the others must not go down for it
                child.failures += 1
                child.restart_at = now + restart_delay_s(child.failures)
                self._say(f"{child.program.name} could not be started: {error}")
                return
            child.started_at, child.restart_at = now, None
            self._write_processes()

    def _children(self) -> list[Child]:
        return [child for layer in self._layers for child in layer]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()

    def _write_processes(self) -> None:
        listing = [
            {"name": child.program.name, "pid": child.process.pid, "command": shlex.join(child.program.command)}
            for child in self._children()
        ]
        path = self.state_dir / "processes.json"
        path.with_suffix(".new").write_text(json.dumps(listing, indent=1) + "\n")
        path.with_suffix(".new").replace(path)

    def _stop_survivors(self) -> None:
        """Stop what a killed supervisor left behind: same pid and same command as it wrote down."""
        path = self.state_dir / "processes.json"
        listing = json.loads(path.read_text()) if path.exists() else []
        survivors = [process for entry in listing if (process := _still_runs(entry["pid"], entry["command"]))]
        for process in survivors:
            self._say(f"stopping process {process.pid}, left behind by a killed `magnus up`")
            process.terminate()
        for process in psutil.wait_procs(survivors, timeout=10)[1]:
            process.kill()

    def _release(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._lock)


def clear(state_dir: Path) -> None:
    """Delete what earlier supervisors of this directory left in it; raises AlreadyRunning while one holds it."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _lock(state_dir)
    try:
        for entry in state_dir.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
    finally:
        os.close(lock)


def _lock(state_dir: Path) -> int:
    descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode()
        os.close(descriptor)
        raise AlreadyRunning(state_dir, holder.strip()) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _still_runs(pid: int, command: str) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        arguments = process.cmdline()
    except psutil.Error:
        return None
    # an interpreter stands before a script's name in the process table
    return process if arguments and shlex.join(arguments).endswith(command) else None


def _rotate(log: Path) -> None:
    """Copy and truncate: children append, so they go on at the start of the emptied file."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)

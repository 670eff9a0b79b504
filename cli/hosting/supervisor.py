"""Keeps the service's processes up: starts them in order, restarts what dies or is silent, stops all in reverse order.

No process is left behind: every child has a session of its own and dies with its supervisor even under SIGKILL (Linux).
The next supervisor of the same state directory stops the processes of `processes.json` that survived anyway.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from cli.hosting import child_process
from cli.hosting.child_process import ChildProgram, StartedChild
from cli.hosting.process_family import ProcessFamily
from cli.hosting.readiness import await_ready
from cli.hosting.state_lock import lock_state_dir

# A longer log is copied to `<name>.log.1` and emptied; ten processes then keep at most 320 MiB. Not tuned.
MAX_LOG_BYTES = 16 * 2**20
# A child that has run for this long starts again with the shortest delay. With 30 s, children that were killed now and
# then were each kept down for ten seconds, and a killed worker's rows ran again only after 16 s.
HEALTHY_S = 10.0
POLL_S = 0.1  # the shortest restart delay; a dead child stays down until the next poll. Not tuned
# Seconds between two checks of all processes; a check takes some milliseconds. A stopped process is resumed after one
# to two of these intervals, well before others take over its work (10 s).
CHECK_S = 2.0
# The most seconds that one turn of the loop adds to `_own_s`: three times POLL_S, which leaves a busy machine time for
# the work of the turn. Not tuned.
LONGEST_TURN_S = 0.3


class Stopped(Exception):
    """A signal to stop came while the supervisor was starting programs."""


def stop_signals() -> list[signal.Signals]:
    """Returns the signals that stop the service; without SIGHUP under nohup."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if nohup else [signal.SIGHUP])]


def restart_delay_s(failures: int) -> float:
    """Returns the seconds to wait before a restart after failures in a row: 0.1, 0.2, 0.4, at most 10."""
    return min(0.1 * 2.0 ** min(failures - 1, 10), 10.0)


@dataclass
class Child:
    """A supervised program and its process; `restart_at` is set while it is down."""

    program: ChildProgram
    log: Path
    started: StartedChild
    started_at: float
    failures: int = 0
    restart_at: float | None = None
    asked_to_end: StartedChild | None = None  # the process that got its stop signal because it was silent

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process, or the last one that ran."""
        return self.started.process

    def stop_listening(self) -> None:
        """Close the pipe of signs of life; the process has ended."""
        if self.restart_at is None and self.started.silence is not None:
            self.started.silence.close()

    def silent_s(self, now: float) -> float | None:
        """Returns the seconds for which a running process has been silent if they exceed its bound, else None."""
        if self.restart_at is not None or self.started.silence is None or self.process.poll() is not None:
            return None
        return self.started.silence.too_long(now)

    def end_silent(self) -> None:
        """Kill the silent process; one that keeps data gets its stop signal first, and is killed if it stays silent."""
        if self.program.keeps_data and self.started is not self.asked_to_end and self.started.silence is not None:
            self.asked_to_end = self.started
            self.started.silence.begin_anew()
            self.process.send_signal(self.program.stop_signal)
        else:
            child_process.kill(self.process)


class Supervisor:
    """A context manager: entering it locks the state directory, leaving it stops every child, also after an error."""

    def __init__(self, state_dir: Path, report: Callable[[str], None]) -> None:
        """`report` is called with a line for each restart and each survivor of an earlier supervisor."""
        self.state_dir = state_dir
        self.logs = state_dir / "logs"
        self._report = report
        self._groups: list[list[Child]] = []
        self._family = ProcessFamily()
        self._check_at = 0.0
        # `_own_s` counts seconds like a clock, but nearly stands still while this process itself is late, because its
        # host is overloaded or was paused: its children are late then, too.
        self._own_s, self._turn_at = 0.0, time.monotonic()
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._lock = lock_state_dir(self.state_dir)
        self._handlers = {number: signal.signal(number, lambda *_: self._stopping.set()) for number in stop_signals()}
        try:
            self._stop_survivors()
            self._write_processes()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            while self._groups:
                group = self._groups[-1]
                child_process.stop(*((child.program, child.process) for child in group))
                for child in group:
                    child.stop_listening()
                self._groups.pop()
                with contextlib.suppress(OSError):  # a full disk must not leave the others running
                    self._write_processes()
            self._family.resume_and_clean_up(())
        finally:
            self._release()

    def start(self, *programs: ChildProgram) -> None:
        """Start these programs together and return once all are ready.

        They are stopped together, before programs that were started earlier. Earlier programs that end meanwhile are
        restarted. Raises ProgramFailed if a new one ends or is not ready in time, SettingRefused if it ends because of
        a setting, Stopped if a signal came.
        """
        self.raise_if_stopping()
        earlier, children = self._children(), list[Child]()
        self._groups.append(children)
        for program in programs:
            log = self.logs / f"{program.name}.log"
            children.append(Child(program, log, child_process.start_listening(program, log), time.monotonic()))
            self._write_processes()

        def interrupted() -> bool:
            self._keep_up(earlier)
            return self._stopping.is_set()

        for child in children:
            await_ready(child.program, child.process, child.log, interrupted, self._say)
        self.raise_if_stopping()

    def raise_if_stopping(self) -> None:
        """Raise Stopped if a signal to stop has come."""
        if self._stopping.is_set():
            raise Stopped

    def watch(self) -> None:
        """Restart every child that dies or is silent for too long, until a signal to stop comes."""
        while not self._stopping.wait(POLL_S):
            self.turn()

    def turn(self) -> None:
        """Do what `watch` does every POLL_S."""
        self._keep_up(self._children())

    def _keep_up(self, children: Collection[Child]) -> None:
        """Restart the children that have ended; every CHECK_S, find those that are frozen."""
        now = time.monotonic()
        self._own_s += min(now - self._turn_at, LONGEST_TURN_S)
        self._turn_at = now
        for child in children:
            try:
                self._restart_if_ended(child, now)
            except OSError as error:  # a full disk must not stop the other children
                self._say(f"{child.program.name}: {error}")
        if now >= self._check_at:
            self._check_at = now + CHECK_S
            self._check(children)

    def _check(self, children: Collection[Child]) -> None:
        resumed, orphans = self._family.resume_and_clean_up([child.process.pid for child in self._children()])
        for what, processes in (("was stopped, goes on", resumed), ("was left behind, killed", orphans)):
            for process in processes:
                self._say(f"process {process.pid} {what}")
        self._end_silent(children)
        for child in children:
            with contextlib.suppress(OSError):
                _rotate(child.log)

    def _end_silent(self, children: Collection[Child]) -> None:
        """End the children that were silent for too long; those that keep data wait until no other child is silent."""
        silent = [(child, silent_s) for child in children if (silent_s := child.silent_s(self._own_s)) is not None]
        others = [one for one in silent if not one[0].program.keeps_data]
        for child, silent_s in others or silent:
            self._say(f"{child.program.name} gave no sign of life for {silent_s:.0f} s, ended; see {child.log}")
            child.end_silent()
        if others:
            for child, _ in silent:
                if child.started.silence is not None:
                    child.started.silence.begin_anew()

    def _restart_if_ended(self, child: Child, now: float) -> None:
        if child.restart_at is None:
            if child.process.poll() is None:
                return
            child.stop_listening()
            child.failures = 1 if now - child.started_at > HEALTHY_S else child.failures + 1
            child.restart_at = now + restart_delay_s(child.failures)
            self._say(f"{child.program.name} ended with {child.process.returncode}, restarting; see {child.log}")
        elif now >= child.restart_at:
            try:
                child.started = child_process.start_listening(child.program, child.log)
            except OSError as error:  # lack of memory or file descriptors must not stop the others
                child.failures += 1
                child.restart_at = now + restart_delay_s(child.failures)
                self._say(f"{child.program.name} could not be started: {error}")
                return
            child.started_at, child.restart_at = now, None
            self._write_processes()

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # standard error may be a file on a full disk
            self._report(line)

    def _children(self) -> list[Child]:
        return [child for group in self._groups for child in group]

    def _write_processes(self) -> None:
        listing = [
            {"name": child.program.name, "pid": child.process.pid, "command": shlex.join(child.program.command)}
            for child in self._children()
        ]
        path = self.state_dir / "processes.json"
        path.with_suffix(".new").write_text(json.dumps(listing, indent=1) + "\n")
        path.with_suffix(".new").replace(path)

    def _stop_survivors(self) -> None:
        """Stop what a killed supervisor left behind: processes that have the pid and the command of processes.json."""
        path = self.state_dir / "processes.json"
        listing = json.loads(path.read_text()) if path.exists() else []
        survivors = [process for entry in listing if (process := _survivor(entry["pid"], entry["command"]))]
        for process in survivors:
            self._report(f"stopping process {process.pid}, left behind by a killed `magnus up`")
            process.terminate()
        for process in psutil.wait_procs(survivors, timeout=10)[1]:
            process.kill()

    def _release(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._lock)


def _survivor(pid: int, command: str) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        arguments = process.cmdline()
    except psutil.Error:
        return None
    # the process table has the interpreter's path before the path of a script
    return process if arguments and shlex.join(arguments).endswith(command) else None


def _rotate(log: Path) -> None:
    """Copy and truncate a long log: children append, so that their next line is the first of the emptied file."""
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)

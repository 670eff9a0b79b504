"""The supervised children and their descendants: resumes stopped ones, kills descendants that outlived their child."""

import contextlib
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import psutil

STOPPED = b"T"  # the state of a stopped process in /proc/PID/stat
MOST_STAT_BYTES = 4096  # the file is one line of a few hundred bytes


@dataclass(frozen=True, slots=True)
class Member:
    """A process; `began` distinguishes it from a later process with the same id."""

    pid: int
    began: float


@dataclass(frozen=True, slots=True)
class _State:
    member: Member
    parent: int
    stopped: bool


class ProcessFamily:
    """Children and their descendants at the last call of `resume_and_clean_up`."""

    def __init__(self) -> None:
        self._members: set[Member] = set()
        self._stopped: set[Member] = set()

    def resume_and_clean_up(self, children: Collection[int]) -> tuple[list[Member], list[Member]]:
        """Resume stopped processes and kill orphans; returns the resumed processes and the orphans.

        A process that is stopped (SIGSTOP) at two calls in a row is resumed. No part of a service is stopped on
        purpose, a Postgres session or a server's worker cannot be replaced alone, and resuming loses nothing, because
        work that others took over meanwhile is fenced. An orphan is a process that a child left behind when it died.
        """
        before, processes = self._members, _processes()
        family = _with_descendants(children, processes)
        self._members = {one.member for one in family}
        stopped = {one.member for one in family if one.stopped}
        resumed, self._stopped = stopped & self._stopped, stopped - self._stopped
        orphans = (before - self._members) & {one.member for one in processes.values()}
        for member in resumed:
            _send(member, signal.SIGCONT)
        for member in orphans:
            _send(member, signal.SIGKILL)
        return sorted(resumed, key=lambda member: member.pid), list(orphans)


def _send(member: Member, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(member.pid, number)


def _with_descendants(children: Collection[int], processes: Mapping[int, _State]) -> list[_State]:
    """Returns the children and all of their descendants."""
    of_parent: dict[int, list[_State]] = {}
    for one in processes.values():
        of_parent.setdefault(one.parent, []).append(one)
    found = [one for one in of_parent.get(os.getpid(), ()) if one.member.pid in children]
    for one in found:  # the loop also visits the children that it appends
        found += of_parent.get(one.member.pid, ())
    return found


def _processes() -> dict[int, _State]:
    """Returns every process of this host by its id."""
    if os.path.exists(f"/proc/{os.getpid()}/stat"):  # Linux; psutil takes several times as long
        return {int(pid): state for pid in os.listdir("/proc") if pid.isdigit() and (state := _read(pid))}
    return {
        process.pid: _State(
            Member(process.pid, process.create_time()), process.ppid(), process.status() == psutil.STATUS_STOPPED
        )
        for process in psutil.process_iter()
        if process.is_running()
    }


def _read(pid: str) -> _State | None:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:  # the process has ended
        return None
    try:
        stat = os.read(descriptor, MOST_STAT_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # what follows the process's name: the fields of proc(5) from the third on
    fields = stat.rpartition(b")")[2].split()
    state, parent, began = fields[0], fields[1], fields[19]
    return _State(Member(int(pid), float(began)), int(parent), state == STOPPED)

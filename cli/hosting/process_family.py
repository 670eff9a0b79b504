"""The processes that the children started: which of them are stopped, and which outlived the child they belong to."""

import contextlib
from collections.abc import Collection

import psutil


class ProcessFamily:
    """Children and their descendants as of the last look."""

    def __init__(self) -> None:
        self._members: set[psutil.Process] = set()
        self._stopped: set[psutil.Process] = set()

    def tend(self, children: Collection[int]) -> tuple[list[psutil.Process], list[psutil.Process]]:
        """Look at everybody; returns the stopped processes that go on now, and the orphans that were killed.

        What is stopped (SIGSTOP) at two looks in a row goes on. No part of a service is stopped on purpose, a Postgres
        session or a server's worker cannot be replaced alone, and going on loses nothing: what others took over
        meanwhile is fenced. An orphan is what a child left behind when it died.
        """
        before = self._members
        self._members = _with_descendants(children)
        stopped = {process for process in self._members if _is_stopped(process)}
        resumed, self._stopped = stopped & self._stopped, stopped - self._stopped
        for process in resumed:
            with contextlib.suppress(psutil.Error):
                process.resume()
        orphans = [process for process in before - self._members if process.is_running()]
        for process in orphans:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return sorted(resumed, key=lambda process: process.pid), orphans


def _with_descendants(children: Collection[int]) -> set[psutil.Process]:
    found, parents = set(), set(children)
    for process in psutil.Process().children(recursive=True):  # parents come before their children
        with contextlib.suppress(psutil.Error):
            if process.pid in parents or process.ppid() in parents:
                parents.add(process.pid)
                found.add(process)
    return found


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False

"""A script that replaces itself by a command of the given user; the command dies with the process that started it.

The script is started by its path with `python -I -S`, because a supervisor must not run Python code between fork and
exec: that can deadlock with threads. Linux clears the parent-death signal when the user changes, so it is set last.
"""

import contextlib
import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1  # prctl(2): the signal that this process gets when its parent dies


def launch(parent: int, orphan_signal: int, nice: int, uid: int, gid: int, command: list[str]) -> None:
    """Replace this process by `command`; `uid` and `gid` -1 keep the user. Never returns."""
    lower_priority(nice)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, orphan_signal)
        if os.getppid() != parent:  # the parent died before the death signal was set
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606


def lower_priority(nice: int) -> None:
    """Raise the niceness of this thread, and of its session: with autogroup Linux shares CPUs among sessions."""
    os.nice(nice)
    if nice:
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as autogroup:
            autogroup.write(str(nice))


if __name__ == "__main__":
    parent, orphan_signal, nice, uid, gid = map(int, sys.argv[1:6])
    launch(parent, orphan_signal, nice, uid, gid, sys.argv[6:])

"""Names a process uniquely among all hosts, as `host#boot:process id`, and tells whether a named process has ended.

Two hosts may have the same host name, and two containers the same name and process ids. `boot` therefore stands for the
start of the host's kernel and for the process's own namespace of process ids.
"""

import hashlib
import os
import socket
import uuid
from pathlib import Path

import psutil


def this_process() -> str:
    """Returns the name of this process."""
    return f"{_this_host()}:{os.getpid()}"


def has_ended(process: str) -> bool:
    """Returns whether a process of this host has ended; False for a process of another host, whose state is unknown."""
    host, _, pid = process.rpartition(":")
    return host == _this_host() and not psutil.pid_exists(int(pid))


def _this_host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux
        boot = str(uuid.getnode())
    return f"{socket.gethostname()}#{hashlib.sha256(boot.encode()).hexdigest()[:6]}"

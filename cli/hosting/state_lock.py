"""The lock of a state directory: one supervisor at a time has it, and nobody deletes a directory that is in use."""

import fcntl
import os
import shutil
from pathlib import Path

from cli.output import CommandFailed


class AlreadyRunning(CommandFailed):
    """Another supervisor has the lock of this state directory."""


def emptied(state_dir: Path) -> Path:
    """Return a state directory with nothing in it but its lock; raises AlreadyRunning while a supervisor has that."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = lock_state_dir(state_dir)
    try:
        for entry in state_dir.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
    finally:
        os.close(lock)
    return state_dir


def lock_state_dir(state_dir: Path) -> int:
    """Returns the descriptor that holds the lock until it is closed; raises AlreadyRunning."""
    descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        raise AlreadyRunning(
            f"Magnus is already running in {state_dir} (process {pid or 'unknown'}); "
            "stop it first, or choose another --state-dir"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor

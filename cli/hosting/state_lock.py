"""The lock of a state directory: one supervisor at a time has it, and nobody deletes a directory that is in use."""

import fcntl
import os
import shutil
from pathlib import Path


class AlreadyRunning(Exception):
    """Another supervisor has the lock of this state directory."""

    def __init__(self, state_dir: Path, pid: str) -> None:
        self.state_dir, self.pid = state_dir, pid
        super().__init__(
            f"Magnus is already running in {state_dir} (process {pid or 'unknown'}); "
            "stop it first, or choose another --state-dir"
        )


def clear_state_dir(state_dir: Path) -> None:
    """Delete everything in a state directory but its lock; raises AlreadyRunning while a supervisor has it locked."""
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


def lock_state_dir(state_dir: Path) -> int:
    """Returns the descriptor that holds the lock until it is closed; raises AlreadyRunning."""
    descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        raise AlreadyRunning(state_dir, pid) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor

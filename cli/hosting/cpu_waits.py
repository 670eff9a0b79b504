"""How long the threads of a child waited for a CPU, which distinguishes a starved process from a frozen one."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NANOSECONDS = 1e9


def cpu_waits(pid: int) -> dict[int, float]:
    """Returns the seconds that each thread of a process and its descendants has waited for a CPU; empty off Linux."""
    return dict(_waits(pid))


def _waits(pid: int) -> Iterator[tuple[int, float]]:
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended, or the kernel does not count its waits
            yield int(thread.name), int((thread / "schedstat").read_text().split()[1]) / NANOSECONDS
            for child in (thread / "children").read_text().split():
                yield from _waits(int(child))

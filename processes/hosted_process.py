"""The frame of each background process: parts that start and stop together, and its signs of life."""

from collections.abc import Callable, Sequence
from typing import Protocol

from processes.garbage_collection import limit_garbage_collection
from processes.loop import Loop
from processes.signs_of_life import Pulse


class Part(Protocol):
    """A loop, a listener or another thread of a process."""

    def start(self) -> None:
        """Begin to work, in a thread of its own."""

    def stop(self) -> None:
        """Begin no new work; may wait until the work in progress has ended."""


class HostedProcess:
    """Parts that start in their order and stop in reverse order; the process is alive unless one of its loops hangs."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        works: Callable[[], bool] = lambda: True,
        on_stopped: Callable[[], None] = lambda: None,
    ) -> None:
        """`works` returns whether the parts other than loops work; `on_stopped` is called after the last part's end."""
        self.parts, self._on_stopped = parts, on_stopped
        loops = [part for part in parts if isinstance(part, Loop)]
        self._pulse = Pulse(lambda: works() and not any(loop.hangs for loop in loops))

    def start(self) -> None:
        """Start all parts, then the pulse."""
        for part in self.parts:
            part.start()
        self._pulse.start()
        limit_garbage_collection()

    def stop(self) -> None:
        """Stop all parts."""
        for part in reversed(self.parts):
            part.stop()
        self._on_stopped()

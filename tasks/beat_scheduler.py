"""Beat's scheduler: it keeps the schedule in memory and sleeps until the next tick is due.

Celery's own scheduler wakes up 10 ms early and then polls. With two ticks every 0.1 s, the polling was most of beat's
CPU time.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery.beat import Scheduler


class TickScheduler(Scheduler):  # type: ignore[misc]  # celery is untyped
    """Entries need no history: after a restart they start anew."""

    around_each_turn: Callable[[], AbstractContextManager[None]] = staticmethod(nullcontext)

    def tick(self, *args: Any, **options: Any) -> Any:
        """One turn: send the ticks that are due; returns the seconds until the next one."""
        with self.around_each_turn():
            return super().tick(*args, **options)

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """How many of the `n` seconds until the next tick to sleep: all of them, because `drift` is not needed."""
        return n

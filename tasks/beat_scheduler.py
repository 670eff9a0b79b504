"""Beat's scheduler: it keeps the schedule in memory, sleeps until a tick is due, and sends none on top of another.

Celery's own scheduler wakes up 10 ms early and then polls. With two ticks every 0.1 s, the polling was most of beat's
CPU time.
"""

from time import monotonic
from typing import Any

import structlog
from celery.beat import ScheduleEntry, Scheduler

log = structlog.get_logger()


class TickScheduler(Scheduler):  # type: ignore[misc]  # celery is untyped
    """Entries need no history: after a restart they start anew. Any number of beats may run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ticked_at, self._closing = monotonic(), False

    @property
    def turn_s(self) -> float:
        """How long ago the present turn began; a tenth of a second or so, unless beat is stuck in it."""
        return monotonic() - self._ticked_at

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Run what is due; returns the seconds until the next tick.

        Celery's handler of SIGTERM closes the scheduler and raises SystemExit, which an error of the interrupted send
        may replace: beat would then run on.
        """
        if self._closing:
            raise SystemExit
        self._ticked_at = monotonic()
        return float(super().tick(*args, **kwargs))

    def close(self) -> None:
        """A signal to stop came, or beat ends."""
        self._closing = True
        super().close()

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """How many of the `n` seconds until the next tick to sleep: all of them, because `drift` is not needed."""
        return n

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send a tick, unless one still waits in its queue: nobody takes them, and more would only pile up.

        This needs no clock. Ticks that expire are dropped unread on a host whose clock is ahead.
        """
        try:
            if not self._waiting(self.app.conf.task_routes[entry.task]["queue"]):
                self.apply_async(entry, producer=producer, advance=False)
        except Exception as error:
            log.error("tick not sent", tick=entry.name, error=str(error))

    def _waiting(self, queue: str) -> int:
        return int(self.connection.default_channel.client.llen(queue))

    def _ensure_connected(self) -> Any:
        def on_error(error: Exception, pause_s: float) -> None:
            self._ticked_at = monotonic()  # waiting for the broker is no hanging
            log.error("broker away", error=str(error), pause_s=pause_s)

        return self.connection.ensure_connection(on_error, self.app.conf.broker_connection_max_retries)

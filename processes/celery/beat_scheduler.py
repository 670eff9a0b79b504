"""Beat's scheduler: it keeps the schedule in memory, sleeps until a tick is due, and queues no second tick of a kind.

Celery's own scheduler wakes up 10 ms early and then polls. When two ticks were sent every 0.1 s, the polling was most
of beat's CPU time.
"""

from time import monotonic
from typing import Any

import structlog
from celery.beat import ScheduleEntry, Scheduler

log = structlog.get_logger()


class TickScheduler(Scheduler):  # type: ignore[misc]  # celery is untyped
    """Sends the ticks; entries need no history, so they restart with the process. Several schedulers may run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ticked_at, self._closing = monotonic(), False

    @property
    def turn_s(self) -> float:
        """Seconds since the running turn began: at most about TICK_S, unless beat is stuck in it."""
        return monotonic() - self._ticked_at

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send the ticks that are due; returns the seconds until the next one.

        Raises SystemExit once Celery's handler of SIGTERM has closed the scheduler: the SystemExit of the handler may
        be lost to an error.
        """
        if self._closing:
            raise SystemExit
        self._ticked_at = monotonic()
        return float(super().tick(*args, **kwargs))

    def close(self) -> None:
        """End at the next tick."""
        self._closing = True
        super().close()

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """Returns how many of the `n` seconds until the next tick to sleep: all of them, without Celery's `drift`."""
        return n

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send a tick unless one still waits in its queue, so that untaken ticks do not pile up.

        Expiring ticks would need a clock: a host whose clock is ahead would drop them unread.
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
            self._ticked_at = monotonic()  # a beat that waits for the broker does not hang
            log.error("broker away", error=str(error), pause_s=pause_s)

        return self.connection.ensure_connection(on_error, self.app.conf.broker_connection_max_retries)

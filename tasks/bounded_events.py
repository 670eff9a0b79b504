"""The events of beat's ticks, so that Flower shows them beside the batches: one a second of each task, not thirty."""

from time import monotonic
from typing import Any, ClassVar

from celery.worker.request import Request

EVENTS_EVERY_S = 1.0  # seconds between two events of tasks with one name; any value near a second works


class BoundedEvents(Request):  # type: ignore[misc]  # celery is untyped
    """A request of a task that is declared with `send_events=False`, which keeps Celery from sending all its events."""

    _shown_at: ClassVar[dict[str, float]] = {}  # by task, in this process

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        now = monotonic()
        self._shown = now - self._shown_at.get(self.name, float("-inf")) >= EVENTS_EVERY_S
        if self._shown:
            self._shown_at[self.name] = now
            self.send_event("task-received", name=self.name, args=self.argsrepr, kwargs=self.kwargsrepr)

    def send_event(self, type: str, **fields: Any) -> None:
        """Send the event of a request that is shown."""
        if self._shown and self.eventer and self.eventer.enabled:
            self.eventer.send(type, uuid=self.id, **fields)

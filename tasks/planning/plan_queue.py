"""Makes this process consume the queue of ticks only while it leads."""

from typing import Any

QUEUE = "plan"


class PlanQueue:
    """Starts and stops this process's consumption, also before Celery's consumer exists; any thread may call `set`."""

    def __init__(self) -> None:
        self.consumer: Any = None  # celery.worker.consumer.Consumer, which is untyped
        self._consumes = True  # a worker consumes its queues when it starts

    @property
    def consumes(self) -> bool:
        """Whether it consumes the queue, or soon will."""
        return self._consumes

    def set(self, consume: bool) -> None:
        """Start or stop consuming the queue; Celery's own thread does it soon afterwards."""
        if self.consumer is None or consume == self._consumes:
            return
        self._consumes = consume
        self.consumer.call_soon(self._add if consume else self._cancel)

    def _add(self) -> None:
        self.consumer.add_task_queue(QUEUE)

    def _cancel(self) -> None:
        self.consumer.cancel_task_queue(QUEUE)

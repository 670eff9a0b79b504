"""Whether this process consumes the queue of ticks: only while it leads."""

from typing import Any

QUEUE = "plan"


class PlanQueue:
    """Celery's consumer of this process, or what stands for it until there is one; any thread may call `set`."""

    def __init__(self) -> None:
        self.consumer: Any = None  # celery.worker.consumer.Consumer, which is untyped
        self._consumes = True  # a worker consumes its queues when it starts

    @property
    def consumes(self) -> bool:
        """Whether it does, or soon will."""
        return self._consumes

    def set(self, consume: bool) -> None:
        """Consume the queue, or stop to; done by Celery's own thread, soon."""
        if self.consumer is None or consume == self._consumes:
            return
        self._consumes = consume
        self.consumer.call_soon(self._add if consume else self._cancel)

    def _add(self) -> None:
        self.consumer.add_task_queue(QUEUE)

    def _cancel(self) -> None:
        self.consumer.cancel_task_queue(QUEUE)

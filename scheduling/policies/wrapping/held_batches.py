"""Gives idle workers one batch at a time, under a policy that assigns all waiting requests to workers' queues at once.

The policy's batches wait here, in its order, until a worker is idle. Once all of them are given out, the policy is
asked again. So no batch waits in the queue of a busy worker while another worker is idle.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from scheduling.policies.wrapping.wrapping_policy import WrappingPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape, waiting_batch
from scheduling.request import Request


class HeldBatches(WrappingPolicy):
    """A policy of mode `queue`, and its batches that no worker has yet."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._policy = make_policy()
        self._held: list[Assignment] = []  # the first one last; they may have discarded requests
        self._ids: set[str] = set()  # ids of their requests that are not discarded

    def __len__(self) -> int:
        return super().__len__() + len(self._ids)

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._policy.add(request, now)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        if request_id in self._ids:
            self._ids.discard(request_id)
            return True
        return self._policy.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Give each idle worker the first batch that fits it; the largest workers take any."""
        if not any(worker.idle for worker in workers):
            return []
        if not self._ids:
            self._held = self._policy.assign(workers, now)[::-1]
            self._ids = {request.id for batch in self._held for request in batch.requests}
        largest_tokens = max(worker.memory.capacity_tokens for worker in workers)
        assignments = []
        for worker in (worker for worker in workers if worker.idle):
            takes_any = worker.memory.capacity_tokens == largest_tokens
            for place in range(len(self._held) - 1, -1, -1):
                batch = self._without_discarded(self._held[place])
                if not batch.requests:
                    del self._held[place]
                elif takes_any or worker.memory.fits(*_shape(batch)):
                    del self._held[place]
                    self._ids -= {request.id for request in batch.requests}
                    estimated_s = worker.costs.serve_s(*_shape(batch))
                    assignments.append(replace(batch, worker=worker.name, estimated_s=estimated_s))
                    break
        return assignments

    def _without_discarded(self, batch: Assignment) -> Assignment:
        return replace(batch, requests=tuple(request for request in batch.requests if request.id in self._ids))

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy."""
        self._policy.out_of_memory(assignment, now)

    def wake_at(self, now: float) -> float | None:
        """Return when the policy wants to be asked again, if it is to be asked at all."""
        return None if self._ids else super().wake_at(now)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield the held batches, then those of the policy."""
        for batch in map(self._without_discarded, reversed(self._held)):
            if batch.requests:
                yield waiting_batch(batch.requests, None, now, batch.iteration_limit, batch.sealed)
        yield from self._policy.waiting(now)


def _shape(batch: Assignment) -> tuple[int, int, int]:
    """Return size, length and iterations of a batch, whose slice is assumed to run to its end."""
    size, length, generation_length = batch_shape(batch.requests)
    return size, length, batch.iteration_limit or generation_length

"""Serves some requests apart from a policy's own batches, each batch alone on its engine while it runs.

Suspects are requests that an engine was serving when it failed, or when its process died. They run again in halves. If
a half ends well, its requests are cleared; if it fails, it is halved again. So among n rows the request that makes
engines fail is alone after at most ⌈log2(n)⌉ + 1 failures, whatever the others do.

A request that ran out of memory alone goes to a larger worker, if possible to one whose memory holds its limit.
"""

from collections.abc import Iterable, Iterator, Sequence

from scheduling.costs import ServingTime
from scheduling.outer_policy import OuterPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape, waiting_batch
from scheduling.request import Request, discard_from, reserve_limit, split


class IsolatingPolicy(OuterPolicy):
    """A policy with a queue before it, of batches that must be served apart.

    A batch from that queue runs to completion. Under continuous batching its worker takes no joiners until it has
    ended. At most half of the workers (but at least one) serve such batches, so that other requests go on.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self.mode = policy, policy.mode
        self._apart: list[tuple[Request, ...]] = []
        self._costs: ServingTime | None = None  # the costs of the first worker of the last decision

    def __len__(self) -> int:
        return super().__len__() + sum(map(len, self._apart))

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy."""
        self._policy.out_of_memory(assignment, now)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait; it waits apart if it has outgrown a worker."""
        if request.outgrew_tokens:
            self._apart.append((reserve_limit(request),))
        else:
            self._policy.add(request, now)

    def isolate(self, suspects: Sequence[Request]) -> None:
        """Let requests that were served together when an engine failed wait apart, in halves."""
        self._apart += split(suspects)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        return discard_from(self._apart, request_id) or self._policy.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Assign batches that are served apart; the policy then sees the workers with these batches."""
        self._costs = workers[0].costs if workers else self._costs
        apart = {assignment.worker: assignment for assignment in self._assign_apart(workers)}
        with_these = [worker.given(apart[worker.name], now) if worker.name in apart else worker for worker in workers]
        return [*apart.values(), *self._policy.assign(with_these, now)]

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield the batches that wait apart, then the batches of the policy."""
        for batch in self._apart:
            yield waiting_batch(batch, self._costs, now, sealed=True)
        yield from self._policy.waiting(now)

    def _assign_apart(self, workers: Sequence[Worker]) -> Iterator[Assignment]:
        """Yield at most one batch for each worker that may take one."""
        free = self._available(workers)
        most = len(workers)
        if self.mode == "continuous":
            most = max(1, len(workers) // 2) - sum(worker.queued > 0 for worker in workers)
        for batch in list(self._apart):
            if most <= 0 or not free:
                return
            able = [worker for worker in _able(workers, batch) if worker.name in free]
            if able:
                worker = min(able, key=_soonest_and_smallest)
                free.discard(worker.name)
                most -= 1
                self._apart.remove(batch)
                estimated_s = worker.costs.serve_s(*batch_shape(batch))
                yield Assignment(worker.name, batch, sealed=True, estimated_s=estimated_s)

    def _available(self, workers: Sequence[Worker]) -> set[str]:
        """Return the workers that may take a batch: idle ones; in `continuous` also those with rows; in `queue` all."""
        if self.mode == "queue":
            return {worker.name for worker in workers}
        return {worker.name for worker in workers if worker.idle or (self.mode == "continuous" and not worker.queued)}


def _able(workers: Sequence[Worker], batch: Sequence[Request]) -> list[Worker]:
    """Return the workers that meet the requests' needs, are larger than the outgrown workers, and hold the batch.

    If no worker holds the batch, return the largest ones.
    """
    outgrew_tokens = max(request.outgrew_tokens for request in batch)
    size, length, generation_length = len(batch), max(r.prefill for r in batch), max(r.remaining_upper for r in batch)
    larger = [
        worker for worker in workers if worker.memory.longest_row_tokens > outgrew_tokens and worker.can_serve(batch)
    ]
    able = [worker for worker in larger if worker.memory.fits(size, length, generation_length)]
    largest_tokens = max((worker.memory.capacity_tokens for worker in larger), default=0)
    return able or [worker for worker in larger if worker.memory.capacity_tokens == largest_tokens]


def _soonest_and_smallest(worker: Worker) -> tuple[bool, float, int, str]:
    return not worker.idle, worker.busy_s, worker.memory.capacity_tokens, worker.name

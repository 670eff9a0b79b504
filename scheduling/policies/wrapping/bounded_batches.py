"""Bounds the time of a policy's batches that run to completion, so that others need not wait long for a worker.

A batch of background requests cannot be stopped, and whoever comes meanwhile waits for its end. So it runs for a number
of iterations; its unfinished rows wait again with their tokens, which are prefilled again. A policy of mode `batch`
whose batches have limits of their own keeps these.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from scheduling.costs import ServingTime, linearized
from scheduling.policies.wrapping.wrapping_policy import WrappingPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape
from scheduling.request import Request

# The seconds that a batch takes at most, apart from the next value: as long as ten short answers take together on the
# papers' GPUs, so that a small job of another tenant takes at most about twice as long as alone.
BATCH_S = 8.0
# Decoding takes at least this many times as long as the prefill, which unfinished rows repeat. Not tuned.
DECODED = 2.0


class BoundedBatches(WrappingPolicy):
    """A policy of mode `batch` whose batches take about `BATCH_S` at most."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._policy = make_policy()
        self.mode = self._policy.mode

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._policy.add(request, now)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let the policy assign batches and limit their iterations."""
        costs = {worker.name: worker.costs for worker in workers}
        return [bounded(batch, costs[batch.worker]) for batch in self._policy.assign(workers, now)]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy."""
        self._policy.out_of_memory(assignment, now)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the policy's batches."""
        return self._policy.waiting(now)


def bounded(batch: Assignment, costs: ServingTime) -> Assignment:
    """Return the batch with an iteration limit, unless it has one."""
    if batch.iteration_limit is not None:
        return batch
    size, length, generation_length = batch_shape(batch.requests)
    curves = linearized(costs)
    prefill_s = curves.prefill_s(size, length)
    decode_s = max(BATCH_S - prefill_s, DECODED * prefill_s)
    longest = max(request.limit - request.generated for request in batch.requests)
    limit = int(min(longest, decode_s / max(decode_s / longest, curves.decode_step_s(size, length))))
    estimated_s = costs.serve_s(size, length, min(generation_length, limit))
    return replace(batch, iteration_limit=max(1, limit), estimated_s=estimated_s)

"""What is served apart from a policy's own batches, each batch alone on its engine while it runs.

Suspects: requests that an engine was serving when it failed, or when its process died. They run again in halves. A half
that ends is cleared; one that fails comes back and is halved again. So of n rows a guilty one is alone after at most
⌈log2(n)⌉ + 1 failures, whatever the others do.

Outgrown: a request that ran out of memory alone goes to a larger worker, one that holds its limit if there is any.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduling.batch_estimates import batch_shape, waiting_batch
from scheduling.costs import ServingTime
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker
from scheduling.request import Request, discard_from, reserve_limit, split


class IsolatingPolicy(Policy):
    """Another policy, with a queue for what must be served apart, which goes first.

    A batch from that queue runs to completion. Where rows join, its worker takes no joiners until it has ended; at most
    half of the workers are taken that way, or one, so that the others are served on.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self.mode = policy, policy.mode
        self._apart: list[tuple[Request, ...]] = []
        self._costs: ServingTime | None = None  # of the first worker of the last decision

    def __len__(self) -> int:
        return len(self._policy) + sum(map(len, self._apart))

    def add(self, request: Request, now: float) -> None:
        """Let a request wait; apart, if it has outgrown a worker."""
        if request.outgrew_tokens:
            self._apart.append((reserve_limit(request),))
        else:
            self._policy.add(request, now)

    def isolate(self, suspects: Sequence[Request]) -> None:
        """Let the requests wait apart that were served together when an engine failed, in halves."""
        self._apart += split(suspects)

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out; False if it does not wait here."""
        return discard_from(self._apart, request_id) or self._policy.discard(request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """The batches that are served apart, then what the policy assigns to the workers as they are with these."""
        self._costs = workers[0].costs if workers else self._costs
        apart = {assignment.worker: assignment for assignment in self._assign_apart(workers)}
        with_these = [worker.given(apart[worker.name], now) if worker.name in apart else worker for worker in workers]
        return [*apart.values(), *self._policy.assign(with_these, now)]

    def finished(self, assignment: Assignment, now: float) -> None:
        """Take note that a run-to-completion batch has ended on its worker."""
        self._policy.finished(assignment, now)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Take back a batch that did not fit."""
        self._policy.out_of_memory(assignment, now)

    def wake_at(self, now: float) -> float | None:
        """When the policy wants to be asked again."""
        return self._policy.wake_at(now)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Take note of Kendall's tau of recent predictions and answers."""
        self._policy.set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Take note of the tenants' weights."""
        self._policy.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """What waits apart, then what waits in the policy."""
        for batch in self._apart:
            yield waiting_batch(batch, self._costs, now, sealed=True)
        yield from self._policy.waiting(now)

    def _assign_apart(self, workers: Sequence[Worker]) -> Iterator[Assignment]:
        """At most one batch to each worker that may take one."""
        free = self._may_be_taken(workers)
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

    def _may_be_taken(self, workers: Sequence[Worker]) -> set[str]:
        """Idle workers; where rows join also those that decode, and of workers with queues every one."""
        if self.mode == "queue":
            return {worker.name for worker in workers}
        return {worker.name for worker in workers if worker.idle or (self.mode == "continuous" and not worker.queued)}


def _able(workers: Sequence[Worker], batch: Sequence[Request]) -> list[Worker]:
    """The workers larger than those that its requests outgrew which hold the batch; if none does, the largest.

    All of them can do what the requests need.
    """
    outgrew_tokens = max(request.outgrew_tokens for request in batch)
    size, length, generation_length = len(batch), max(r.prefill for r in batch), max(r.remaining_upper for r in batch)
    larger = [
        worker for worker in workers if worker.memory.capacity_tokens > outgrew_tokens and worker.can_serve(batch)
    ]
    able = [worker for worker in larger if worker.memory.fits(size, length, generation_length)]
    largest_tokens = max((worker.memory.capacity_tokens for worker in larger), default=0)
    return able or [worker for worker in larger if worker.memory.capacity_tokens == largest_tokens]


def _soonest_and_smallest(worker: Worker) -> tuple[bool, float, int, str]:
    return not worker.idle, worker.busy_s, worker.memory.capacity_tokens, worker.name

"""Magnus: WMA-directed adaptive batching, estimated serving times, highest response ratio next (Magnus III).

Magnus's ablations are parameters (IV-C): `glp` packs by predicted length into batches of at most VS's fixed size, `abp`
lifts that bound, and both serve batches first come, first served; `magnus` adds the response ratio.

Starvation: let T(X) be the estimated serving time of batch X. Batch B, waiting since a, is overtaken at time t by batch
C only if C has been waiting since before a + (t - a)·(1 - T(C)/T(B)). If every batch takes between T_min and T_max
seconds, a batch that arrives in the last T_min/T_max of B's wait never delays B. So B is served once all work from
before that time is served, even in an overload of up to 1 / (1 - T_min/T_max) times what the fleet can serve.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import add, attrgetter

import numpy as np

from scheduling.adaptive_batching import AdaptiveBatch, AdaptiveBatcher
from scheduling.batch_order import BatchScheduler, NextBatch
from scheduling.chosen_parameters import PUBLISHED_THRESHOLD, cheapest_threshold, chosen_threshold
from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.length_distributions import conditional_totals
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape
from scheduling.request import Request, split

WorkerKind = tuple[ServingTime, KvMemory]  # the same batch is best for all workers of a kind

# These explain to an operator why the first batch is first, with and without the response ratio.
BY_RESPONSE_RATIO = (
    "Its response ratio is the highest: it waited {waited} s for {seconds} s of work, so (waited + work) / work is "
    "{ratio}. Short batches go early, and waiting raises every batch's ratio."
)
BY_CREATION = "Batches are served in the order in which they were made."


@dataclass(frozen=True, slots=True)
class FixedSize:
    """Lmax and Gmax of Eq. (1), which gives the fixed batch size of vanilla scheduling (VS).

    No chosen Φ makes batches that are smaller than this in the mean; with `caps`, no batch is larger than this.
    """

    max_length: int = 1024
    max_generation_length: int = 1024
    caps: bool = False

    def batch_size_for(self, memory: KvMemory) -> int:
        """Return the batch size on a worker with this memory, at least one."""
        return max(1, memory.theta_bytes // memory.batch_bytes(1, self.max_length, self.max_generation_length))


class MagnusPolicy(Policy):
    """Packs each request when it is added (Algorithm 1); idle workers get the batch with the highest response ratio.

    On a fleet of unequal memory batches grow up to the memory of the largest worker. A smaller worker takes batches
    that fit its memory; if no batch fits, it takes the fitting part of one. If `wma_threshold` is None, Φ is chosen by
    recent requests.
    """

    def __init__(
        self,
        wma_threshold: int | None = PUBLISHED_THRESHOLD,
        fixed_size: FixedSize = FixedSize(),
        by_response_ratio: bool = True,
        reserves_upper: bool = True,
    ) -> None:
        """`reserves_upper` reserves memory for each upper quantile; False: for each prediction itself, as published."""
        self._reserves_upper = reserves_upper
        self._fixed_size = fixed_size
        self._threshold = chosen_threshold() if wma_threshold is None else None
        self._batcher = AdaptiveBatcher(PUBLISHED_THRESHOLD if wma_threshold is None else wma_threshold)
        self._table = BatchScheduler(by_response_ratio)
        self.why_first = BY_RESPONSE_RATIO if by_response_ratio else BY_CREATION
        self._costs: ServingTime | None = None  # the costs of the last decision's first worker, for estimates

    def __len__(self) -> int:
        return len(self._batcher)

    def add(self, request: Request, now: float) -> None:
        """Pack the request into a batch by Algorithm 1."""
        if self._threshold:
            self._threshold.record(request)
        self._batcher.add(self._with_reservation(request))

    def discard(self, request_id: str) -> bool:
        """Remove a request from its batch; return False if it does not wait here."""
        batch = self._batcher.batch_with(request_id)
        if batch is None:
            return False
        self._batcher.remove_requests(batch, (request_id,))
        return True

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Give one batch to each idle worker; the kind whose best batch has the highest priority goes first."""
        if not workers:
            return []
        self._costs = workers[0].costs
        idle = self._idle_by_kind(workers)
        if self._threshold and self._batcher.memory:
            cheapest = partial(
                cheapest_threshold,
                costs=self._costs,
                memory=self._batcher.memory,
                max_size=self._batcher.max_size,
                fixed_size=self._fixed_size.batch_size_for(self._batcher.memory),
            )
            self._batcher.set_threshold(self._threshold.choose(cheapest, now))
        undecided = [kind for kind, of_kind in idle.items() if of_kind]
        choices: dict[WorkerKind, NextBatch] = {}
        assignments: list[Assignment] = []
        while True:
            self._table.update(self._changed(), self._batcher.batches)
            choices |= {kind: choice for kind in undecided if (choice := self._choose(*kind, now))}
            if not choices:
                return assignments
            best = max(choices, key=lambda kind: choices[kind].priority)
            batch = choices[best].batch
            assignments.append(self._serve(idle[best].popleft(), choices[best]))
            undecided = [kind for kind in choices if choices[kind].batch is batch]
            choices = {kind: choice for kind, choice in choices.items() if kind not in undecided}
            undecided = [kind for kind in undecided if idle[kind]]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Split the batch into two sealed halves, which wait again."""
        for half in split(assignment.requests):
            self._batcher.open_batch(map(self._with_reservation, half), sealed=True)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches in the order in which the first worker of the last decision would serve them."""
        if self._costs is None:
            return [_described(batch, 0.0, 1.0) for batch in self._batcher.batches.values()]
        self._table.update(self._changed(), self._batcher.batches)
        return (_described(*row) for row in self._table.serving_order(self._costs, now))

    def _with_reservation(self, request: Request) -> Request:
        request = _predicted_again(request) if request.generated else request
        return request if self._reserves_upper else replace(request, predicted_upper=request.predicted)

    def _idle_by_kind(self, workers: Sequence[Worker]) -> dict[WorkerKind, deque[Worker]]:
        """Return the idle workers by kind, and limit the batches to the memory of the fleet's largest worker."""
        idle: dict[WorkerKind, deque[Worker]] = {}
        for worker in workers:
            of_kind = idle.setdefault((worker.costs, worker.memory), deque())
            if worker.idle:
                of_kind.append(worker)
        self._table.keep_estimates_of(costs for costs, _ in idle)
        largest = max((memory for _, memory in idle), key=attrgetter("capacity_tokens"))
        max_size = self._fixed_size.batch_size_for(largest) if self._fixed_size.caps else None
        self._batcher.set_limits(largest, max_size)
        return idle

    def _choose(self, costs: ServingTime, memory: KvMemory, now: float) -> NextBatch | None:
        """Return the best batch that fits, or else the best that fits in part; for the largest workers the best of all.

        The largest workers take the best batch even if it does not fit. Otherwise a request that may need more memory
        than they have would wait until no other batch is left.
        """
        if self._batcher.memory and memory.capacity_tokens == self._batcher.memory.capacity_tokens:
            return self._table.next_batch(costs, None, now)
        choice = self._table.next_batch(costs, memory, now)
        return choice or self._table.next_batch(costs, memory, now, whole=False)

    def _serve(self, worker: Worker, choice: NextBatch) -> Assignment:
        batch = choice.batch
        fits = worker.memory.held(batch.reserved_tokens, len(batch.requests)) <= worker.memory.capacity_tokens
        if fits or len(batch.requests) == 1:
            estimated_s = choice.estimated_s
            requests = self._batcher.take(batch)
        else:
            requests = _part_that_fits(batch, worker.memory)
            self._batcher.remove_requests(batch, [request.id for request in requests])
            estimated_s = worker.costs.serve_s(*batch_shape(requests))
        return Assignment(worker.name, requests, sealed=batch.sealed, estimated_s=estimated_s)

    def _changed(self) -> set[int]:
        changed, self._batcher.changed = self._batcher.changed, set()
        return changed


def _predicted_again(request: Request) -> Request:
    """Return a request that came back unfinished, with a prediction that is longer than what it has generated."""
    known = (request.predicted, request.predicted_upper, request.generated, request.predicted_at)
    totals = conditional_totals(*(np.array([tokens], np.float64) for tokens in known))
    median, upper = (round(total.item()) for total in totals)
    return replace(request, predicted=median, predicted_upper=max(median, upper))


def _part_that_fits(batch: AdaptiveBatch, memory: KvMemory) -> tuple[Request, ...]:
    """Return the requests of the batch that fit together, at least one; those that need the least memory come first."""
    ordered = sorted(
        batch.requests.values(), key=lambda request: (request.prefill + request.remaining_upper, request.arrived_at)
    )
    lengths = accumulate((request.prefill for request in ordered), max)
    uppers = accumulate((request.remaining_upper for request in ordered), max)
    rows = enumerate(map(add, lengths, uppers), start=1)
    fitting = sum(memory.batch_bytes(size, tokens, 0) <= memory.theta_bytes for size, tokens in rows)
    return tuple(ordered[: max(1, fitting)])


def _described(batch: AdaptiveBatch, estimated_s: float, response_ratio: float) -> WaitingBatch:
    return WaitingBatch(
        tuple(batch.requests.values()), batch.length, batch.generation_length, estimated_s, response_ratio, batch.sealed
    )

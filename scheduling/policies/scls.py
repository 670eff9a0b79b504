"""SCLS: slice-level scheduling (SCLS 4). Batches run for one slice; unfinished requests are batched again.

SCLS's ablations (5.4) are parameters, each on top of the one before: SO is `Vanilla` with slices; PM batches by serving
time with a capped batch size, at fixed intervals; AB lifts the cap; LB offloads by max-min (Eq. 11), where the former
three offload round robin (`benchmarks/paper/round_robin.py`); SCLS adapts the interval.

No request starves. Every waiting request is offloaded at the end of the interval, at most max(λ·min load, Γ) seconds
after it came, and batches of later intervals queue behind it. A request needs at most ⌈limit / slice⌉ rounds.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from scheduling.arrival_queue import ArrivalQueue
from scheduling.batch_partition import least_serving_time
from scheduling.chosen_parameters import PUBLISHED_SLICE, cheapest_slice, chosen_slice
from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment, Mode, Policy, WaitingBatch, Worker, batch_shape, waiting_batch
from scheduling.request import Request, discard_from, split

Placement = Callable[[int, int, int], tuple[Worker, float]]  # takes a batch's shape; returns its worker and the seconds


class LeastLoaded:
    """Offloads each batch to the worker on which it ends first: of equal workers, the least loaded one (Eq. 11).

    With the longest batches first this is SCLS's max-min offloading. Workers of equal costs and memory are one kind,
    kept in a heap by load, so that a batch's serving time is computed once for each kind.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._kinds: dict[tuple[ServingTime, KvMemory], list[tuple[float, int, Worker]]] = {}
        for place, worker in enumerate(workers):
            self._kinds.setdefault((worker.costs, worker.memory), []).append((worker.busy_s, place, worker))
        for kind in self._kinds.values():
            heapq.heapify(kind)

    def place(self, size: int, length: int, generation_length: int) -> tuple[Worker, float]:
        """Return the worker, among those that hold the batch, whose load is least with it, and the serving time there.

        If no worker holds the batch, the largest workers are considered.
        """
        fitting = [kind for kind in self._kinds if kind[1].fits(size, length, generation_length)]
        if not fitting:
            largest = max(memory.capacity_tokens for _, memory in self._kinds)
            fitting = [kind for kind in self._kinds if kind[1].capacity_tokens == largest]
        ends = [
            (self._kinds[kind][0][0] + (serve_s := kind[0].serve_s(size, length, generation_length)), turn, serve_s)
            for turn, kind in enumerate(fitting)
        ]
        load_s, turn, serve_s = min(ends)
        kind = self._kinds[fitting[turn]]
        _, place, worker = kind[0]
        heapq.heapreplace(kind, (load_s, place, worker))
        return worker, serve_s

    @property
    def least_load_s(self) -> float:
        """Return the load of the least loaded worker, in seconds."""
        return min(kind[0][0] for kind in self._kinds.values())


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """Limits the rows of a batch: ζ of Eq. (9), and an engine's own limits as in Algorithm 2."""

    usable_share: float = 0.9  # ζ; the default is the paper's for Hugging Face transformers (5.1)
    most_rows: tuple[tuple[int, int], ...] = ()  # (tokens, the most rows if a row has more tokens), the longest first
    cap: int | None = None  # the fixed batch size of the ablation PM

    def largest_size(self, memory: KvMemory, length: int, slice_tokens: int) -> int:
        """Return Nmax of Eq. (8) with ζ, bounded by `most_rows` and `cap`; at least 1."""
        row_tokens = length + slice_tokens
        size = int(int(self.usable_share * memory.capacity_tokens) // memory.held(row_tokens))
        size = min([size, *(rows for tokens, rows in self.most_rows if row_tokens > tokens)][:2])
        return max(1, min(size, self.cap or size))


DEEPSPEED_RULE = MemoryRule(1.0, ((1024, 12), (512, 22), (0, 28)))  # the limits that the paper found (Algorithm 2)


class SliceLevel(Policy):
    """Offloads all waiting requests at the end of each interval, in batches of least total serving time.

    An interval ends after Γ if a worker is idle, because with overestimated costs Eq. (12) would leave workers idle.
    The slice of 128 tokens and λ = 0.5 are the paper's (5.1). If `slice_tokens` is None, the slice is chosen by recent
    lengths and costs.
    """

    mode: Mode = "queue"
    why_first = (
        "It is the longest of the next interval's batches: those are given out first, each to the worker with the "
        "least to do."
    )

    def __init__(
        self,
        slice_tokens: int | None = PUBLISHED_SLICE,
        memory_rule: MemoryRule = MemoryRule(),
        interval_factor: float = 0.5,
        least_interval_s: float | None = None,
    ) -> None:
        self._slice_tokens = PUBLISHED_SLICE if slice_tokens is None else slice_tokens
        self._chosen_slice = chosen_slice() if slice_tokens is None else None
        self._memory_rule = memory_rule
        self._interval_factor = interval_factor  # λ of Eq. (12); 0: the interval is always Γ
        self._least_interval_s = least_interval_s  # Γ; None: as long as a slice of one row on the first worker
        self._pool = ArrivalQueue()
        self._halves: list[tuple[Request, ...]] = []
        self._least_at = self._next_at = float("-inf")  # the interval may end at `_least_at`, and ends at `_next_at`
        self._fleet: Sequence[Worker] = ()  # the fleet of the last decision

    def __len__(self) -> int:
        return len(self._pool) + sum(len(half) for half in self._halves)

    def add(self, request: Request, now: float) -> None:
        """Add a request to the pool, which the end of the interval empties."""
        if self._chosen_slice and not request.generated:
            self._chosen_slice.record(request)
        self._pool.add(request)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        return self._pool.discard(request_id) or discard_from(self._halves, request_id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """If the interval is over, offload all waiting requests in batches, those that take longest first."""
        if not workers:
            return []
        self._fleet = workers
        if not len(self) or now < (self._least_at if any(worker.idle for worker in workers) else self._next_at):
            return []
        costs = workers[0].costs
        if self._chosen_slice:
            largest_size = partial(self._memory_rule.largest_size, packing_memory(workers))
            cheapest = partial(cheapest_slice, costs=costs, largest_size=largest_size)
            self._slice_tokens = self._chosen_slice.choose(cheapest, now)
        batches = least_serving_time(self._pool.take(len(self._pool)), self._slice_tokens, costs, self._largest_size())
        offload = [(half, True) for half in self._halves] + [(batch, False) for batch in batches]
        offload.sort(key=lambda batch: (-costs.serve_s(*self._shape(batch[0])), min(r.arrived_at for r in batch[0])))
        self._halves.clear()
        loads = LeastLoaded(workers)
        place = self._placement(loads)
        assignments = [self._offload(batch, sealed, place) for batch, sealed in offload]
        self._least_at = now + (self._least_interval_s or costs.serve_s(1, 1, self._slice_tokens))
        self._next_at = max(now + self._interval_factor * loads.least_load_s, self._least_at)
        return assignments

    def wake_at(self, now: float) -> float | None:
        """Return the next instant at which the interval ends or may end, or None if it is over.

        The instant matters even if nothing waits here, because a policy that wraps this one may hold requests back.
        """
        return next((at for at in (self._least_at, self._next_at) if at > now), None)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Split the batch into two sealed halves, which are offloaded at the end of the interval."""
        self._halves += split(assignment.requests)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Yield halves of batches that did not fit, then the pool in order of arrival, in batches that fit a worker.

        The batches to offload are formed only at the end of the interval; the batches here are about as large.
        """
        costs = self._fleet[0].costs if self._fleet else None
        largest_size = self._largest_size() if self._fleet else lambda length: 1
        for half in self._halves:
            yield waiting_batch(half, costs, now, self._slice_tokens, sealed=True)
        batch: list[Request] = []
        length = 0
        for request in self._pool:
            length = max(length, request.prefill)
            if batch and len(batch) >= largest_size(length):
                yield waiting_batch(batch, costs, now, self._slice_tokens)
                batch, length = [], request.prefill
            batch.append(request)
        if batch:
            yield waiting_batch(batch, costs, now, self._slice_tokens)

    def _largest_size(self) -> Callable[[int], int]:
        """Return a function that returns the most rows of a batch of a given length, for the last decision's fleet."""
        memory = packing_memory(self._fleet)
        return lambda length: self._memory_rule.largest_size(memory, length, self._slice_tokens)

    def _placement(self, loads: LeastLoaded) -> Placement:
        """Return the function that places the batches of one interval."""
        return loads.place

    def _offload(self, batch: tuple[Request, ...], sealed: bool, place: Placement) -> Assignment:
        worker, estimated_s = place(*self._shape(batch))
        return Assignment(worker.name, batch, self._slice_tokens, sealed=sealed, estimated_s=estimated_s)

    def _shape(self, batch: tuple[Request, ...]) -> tuple[int, int, int]:
        """Return size, length and iterations of a batch, whose slice is assumed to run to its end (4.2)."""
        size, length, _ = batch_shape(batch)
        return size, length, self._slice_tokens


def packing_memory(workers: Sequence[Worker]) -> KvMemory:
    """Return the memory for which batches are sized: the one with the largest n · Θ, where n workers have at least Θ.

    On a fleet of unequal memory, full batches of that size fill the most memory in total.
    """
    memories = sorted((worker.memory for worker in workers), key=lambda memory: -memory.capacity_tokens)
    return max(enumerate(memories, start=1), key=lambda ranked: ranked[0] * ranked[1].capacity_tokens)[1]

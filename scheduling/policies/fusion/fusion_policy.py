"""Our own policy: continuous batching by predicted length (Magnus's future work), with later findings of the field.

- Order: by arrival plus the logarithm of the delay that a request causes, priorities and deadlines (`priority_key`).
- Admission: as many rows as keep a worker busy and fit their predicted future (`matching`), predicted again for rows
  that outlive their prediction (`fleet_arrays`), and more of them while memory stands empty (`peak_limits`).
- Placement: where a row delays all requests least, rows of similar length together (`delay_cost`).
- Leaving: if short answers are favoured, rows leave for requests that delay the others far less (`leaving_rows`).
- Joins: in groups, once they are worth the stop of the running rows (`join_buffer`), prefilled by similar length.
- Fairness: the tenant served least for its weight goes first (`length_buckets`); while none of this tenant's requests
  fits, other tenants go ahead by at most the service of its largest request.
- End of a burst: once nothing waits, rows leave for a worker that has run dry (`scheduling.sharing.rebalancing`).
- Guard: the lower the predictor's Kendall's tau, the less predictions change the order, down to FCFS; prompts change it
  unless recent answers are ranked better without them (`set_rank_correlation`).

No request starves. A request that is due (see `priority_key`) goes before all that are not. If a due request fits
nowhere, one worker takes only requests that should end before the instant at which it was to fit there (`matching`),
and none after that until it fits, at the latest when that worker's rows have ended.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.length_distributions import conditional_totals
from scheduling.policies.fusion.delay_cost import NO_WORK, DelayedRequests, delay_s, seconds_per_feature, upper_edges
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.join_buffer import JoinBuffer
from scheduling.policies.fusion.leaving_rows import LeavingRows
from scheduling.policies.fusion.length_buckets import BucketHeads, LengthBuckets, TenantQueues, WaitingRequest
from scheduling.policies.fusion.matching import WorkerReservation, candidate_workers, join_best_pairs
from scheduling.policies.fusion.peak_limits import PeakLimits
from scheduling.policies.fusion.priority_key import (
    FAVOURS,
    Favour,
    FleetLoad,
    due_or_urgent_keys,
    in_batches,
    priority_keys,
    serving_order,
)
from scheduling.policies.fusion.serving_pace import ServingPace
from scheduling.policy import Assignment, Mode, Policy, WaitingBatch, Worker, waiting_batch
from scheduling.rank_correlation import RankCorrelation, prediction_weight, weighted
from scheduling.request import Request, RowLength
from scheduling.virtual_token_counters import Account, service_tokens

# A decision tries this many of the least served tenants before the fleet counts as full. A further tenant might have a
# request that still fits, but each tenant takes the time of a round. Not tuned.
TENANTS_TRIED = 8


@dataclass(frozen=True, slots=True)
class DecisionState:
    """The inputs of one decision. Joiners are added to `fleet`; the other fields stay as they were at its start."""

    fleet: FleetArrays
    load: FleetLoad
    delayed: DelayedRequests
    now: float


class Fusion(Policy):
    """Our policy; a decision considers only the first request of each length bucket, however many requests wait."""

    mode: Mode = "continuous"
    why_first = (
        "Its arrival, moved back the further the more it would delay the others, is the earliest: short requests "
        "overtake while much waits, and whoever has waited twice its fair time goes first."
    )

    def __init__(self, favour: Favour = FAVOURS["mean"]) -> None:
        self._favour = favour
        self._queues = TenantQueues()
        self._join_buffer = JoinBuffer()
        self._leaving = LeavingRows()
        self._reservation = WorkerReservation()
        self._peak_limits = PeakLimits()
        self._pace = ServingPace()
        self._prediction_weight, self._by_prompts = 1.0, True
        self._fleet: FleetArrays | None = None  # the fleet of the last decision
        self._in_background = False  # whether the latest request is a background request

    def __len__(self) -> int:
        return len(self._queues) + len(self._join_buffer)

    def add(self, request: Request, now: float) -> None:
        """Add a request to its bucket; if it comes back unfinished, its length is predicted again.

        No waiting work counts as being ahead of it then, unless it left to make way.
        """
        self._in_background = request.background
        first, made_way = request.generated == 0, self._leaving.came_back(request)
        work_ahead = self._queues.backlog.total() if first or made_way else NO_WORK
        request = request if first else predicted_again(request)
        self._queues.add(WaitingRequest(request, work_ahead))

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return whether it waited here."""
        if request_id in self._queues:
            self._queues.take(request_id)
            return True
        return self._join_buffer.remove(request_id) is not None

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        """Let predictions and prompts change the order only as far as they rank requests correctly."""
        self._prediction_weight, self._by_prompts = prediction_weight(rank_correlation.tau), rank_correlation.by_prompts

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet among tenants by these weights from now on."""
        self._queues.counters.set_weights(weights)

    def wake_at(self, now: float) -> float | None:
        """Return when the next group of buffered joiners is to join."""
        return self._join_buffer.wake_at

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Match requests with workers until no request fits; joins that are not worth their cost yet stay buffered."""
        assignments = self._assign(workers, now)
        self._pace.decided((one for each in assignments for one in each.requests), len(self), now)
        return assignments

    def _assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        offered = [worker for worker in workers if not worker.queued]
        self._join_buffer.wake_at = None
        if not offered or not len(self):
            self._peak_limits.after_decision(waits=False)
            return []
        self._leaving.forget_gone(workers)
        self._fleet = fleet = FleetArrays(offered, self._fleet)
        if not self._in_background:  # background requests need only throughput, so their rows are not limited
            fleet.limit_rows()
        self._join_buffered(fleet)
        if not self._in_background:  # background requests keep within the part of the memory that is theirs
            fleet.let_peak_reach(self._peak_limits.factors(fleet, self._prediction_weight, now))
        load = self._load(fleet)
        delayed = DelayedRequests(
            (len(self._queues) + int(fleet.size.sum())) * fleet.speed_share(),
            upper_edges(fleet, self._queues.backlog.work_s(fleet)),
        )
        for buckets in self._queues.by_tenant.values():
            buckets.demote_missed_deadlines(now, load.step_s)
        state = DecisionState(fleet, load, delayed, now)
        while self._join_some(state):
            pass
        leaving = self._make_way(state)
        self._peak_limits.after_decision(len(self._queues) > 0)
        released = self._join_buffer.release(dict(zip(fleet.names, fleet.join_s().tolist(), strict=True)), now)
        decided = [(worker, released.get(name, []), leaving.get(worker, ())) for worker, name in enumerate(fleet.names)]
        return [_assignment(fleet, *of_worker) for of_worker in decided if any(of_worker[1:])]

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting requests in serving order, in batches that fit a mean worker."""
        if not self._fleet:
            every = sorted((one.request for one in self._queues), key=lambda request: (request.arrived_at, request.id))
            return (waiting_batch((request,), None, now) for request in every)
        buffered = [waiting.request for _, waiting in self._join_buffer]
        order = serving_order(self._queues.by_tenant, self._queues.counters, self._load(self._fleet), now)
        return in_batches(chain(buffered, order), self._fleet, now)

    def _load(self, fleet: FleetArrays) -> FleetLoad:
        seconds = seconds_per_feature(fleet) / len(fleet)
        seconds /= self._pace.pace(seconds)
        drain_s = float(seconds @ self._queues.backlog.total())
        prompt_tokens = None if self._by_prompts else self._queues.mean_prefill()
        return FleetLoad(drain_s, float(fleet.step_s().mean()), seconds, self._favour, prompt_tokens)

    def _join_buffered(self, fleet: FleetArrays) -> None:
        """Add the buffered joiners to their worker's rows.

        A joiner waits again if its worker is gone, or if it no longer fits because the worker's rows have grown.
        """
        worker_of = {name: worker for worker, name in enumerate(fleet.names)}
        for name, waiting in list(self._join_buffer):
            worker = worker_of.get(name)
            if worker is None or not fleet.fits_one_more(worker, waiting.request.prefill):
                self._join_buffer.remove(waiting.request.id)
                self._queues.add(waiting)
            else:
                fleet.join(worker, waiting.request)

    def _join_some(self, state: DecisionState) -> bool:
        """Let requests of the least served tenant that has a fitting one join; return whether any joined."""
        reservation = self._reservation
        # A new prediction may have moved the reserving request back in its bucket: then nothing could join the worker.
        if reservation and not (self._queues.is_first(reservation.request_id) and reservation.worker_in(state.fleet)):
            reservation.release()
        counters = self._queues.counters
        tenants = self._queues.least_served(TENANTS_TRIED)
        # While a less served tenant's requests do not fit, other tenants go ahead until their counters reach `most`.
        most = math.inf
        for tenant, next_tenant in zip_longest(tenants, tenants[1:]):
            if counters.served(tenant) > most:
                break
            buckets = self._queues.by_tenant[tenant]
            until = most if next_tenant is None else min(most, counters.served(next_tenant))
            if self._join_from(buckets, tenant, until, state):
                return True
            self._reserve_worker(buckets, state)
            if next_tenant is not None:
                most = min(
                    most, counters.served(tenant) + counters.weighted(tenant, largest_tokens(buckets, state.fleet))
                )
        return False

    def _join_from(self, buckets: LengthBuckets, tenant: Account, until: float, state: DecisionState) -> bool:
        """Let one tenant's requests join by key until its counter exceeds `until`; return whether any joined."""
        fleet, load, counters = state.fleet, state.load, self._queues.counters
        heads = buckets.heads()
        workers = candidate_workers(fleet, heads)
        if not len(workers):
            return False
        delays = self._delays(heads, workers, state)
        key = priority_keys(heads, delays, load, state.now)
        self._reservation.exclude_others(fleet, workers, buckets, key, state.now)

        def own_key(waiting: WaitingRequest) -> float:
            return float(due_or_urgent_keys(buckets.heads(), load, state.now)[buckets.head_column(waiting.request.id)])

        def join(worker: int, waiting: WaitingRequest) -> bool:
            self._join(worker, tenant, waiting, state)
            return counters.served(tenant) <= until

        return join_best_pairs(fleet, buckets, workers, key, own_key, join)

    def _join(self, worker: int, tenant: Account, waiting: WaitingRequest, state: DecisionState) -> None:
        self._queues.take(waiting.request.id)
        state.fleet.join(worker, waiting.request)
        self._join_buffer.add(state.fleet.names[worker], waiting, state.now)
        self._queues.counters.charge(tenant, service_tokens(waiting.request))

    def _make_way(self, state: DecisionState) -> dict[int, tuple[str, ...]]:
        """Let rows leave for requests of the least served tenant that join instead; return the rows' ids by worker.

        None leaves if the workers' abilities differ: a row that comes back then waits in another policy's queue.
        """
        fleet, favour = state.fleet, state.load.favour
        if favour.leaves_from == math.inf or self._in_background or not len(self._queues):
            return {}
        if len({worker.lacks for worker in fleet.workers}) > 1:
            return {}
        (tenant,) = self._queues.least_served(1)
        buckets = self._queues.by_tenant[tenant]
        heads = buckets.heads()
        delays = delay_s(fleet, state.delayed, np.arange(len(fleet)), heads.prefill, self._weighted(heads.remaining))
        firsts = buckets.first_of_each(1)
        leaving: dict[int, tuple[str, ...]] = {}
        rows = self._leaving.make_way(fleet, state.delayed, firsts, delays, self._weighted, favour, state.now)
        for worker, row, waiting in rows:
            self._join(worker, tenant, waiting, state)
            leaving[worker] = (row,)
        return leaving

    def _delays(self, heads: BucketHeads, workers: Ints, state: DecisionState) -> Floats:
        """Return the delays for `priority_keys`, (workers, requests).

        Prompts that do not count in the order still decide between workers: each request's delays are scaled as one.
        """
        remaining, prompt_tokens = self._weighted(heads.remaining), state.load.prompt_tokens
        delays = delay_s(state.fleet, state.delayed, workers, heads.prefill, remaining)
        if prompt_tokens is None:
            return delays
        counted = delay_s(state.fleet, state.delayed, workers, np.full(len(remaining), prompt_tokens), remaining)
        return np.asarray(delays * (counted.min(axis=0) / delays.min(axis=0)), np.float64)

    def _weighted(self, remaining: Floats) -> Floats:
        """Return predicted lengths; the less reliable these are, the closer to the waiting requests' mean remainder."""
        return weighted(remaining, self._queues.mean_remaining(), self._prediction_weight)

    def _reserve_worker(self, buckets: LengthBuckets, state: DecisionState) -> None:
        """If a request that is due or urgent fits nowhere, reserve the worker on which it will fit soonest."""
        key = due_or_urgent_keys(buckets.heads(), state.load, state.now)
        first = buckets.first(buckets.bucket_keys()[int(key.argmin())])
        if first and key.min() < np.inf and not self._reservation:
            self._reservation.reserve(state.fleet, first.request, state.now)


def largest_tokens(buckets: LengthBuckets, fleet: FleetArrays) -> float:
    """Return the tokens of the largest first request of a bucket that could join an empty worker.

    Returns infinity if no such request exists: other tenants must not wait for a request that no live worker can hold.
    """
    heads = buckets.heads()
    longest = max(worker.memory.longest_row_tokens for worker in fleet.workers)
    tokens = (heads.prefill + heads.remaining)[heads.prefill < longest]
    return float(tokens.max()) if len(tokens) else math.inf


def predicted_again(request: Request) -> Request:
    """Return a request with its length predicted from the tokens that it has generated."""
    known = (request.predicted, request.predicted_upper, request.generated, request.predicted_at)
    median, upper = conditional_totals(*(np.array([float(tokens)]) for tokens in known))
    return RowLength(request.generated, round(float(median[0])), round(float(upper[0]))).of(request)


def _assignment(
    fleet: FleetArrays, worker: int, joiners: Sequence[WaitingRequest], leaving: tuple[str, ...]
) -> Assignment:
    """Return a worker's joiners as one assignment; the worker prefills joiners of similar length together."""
    requests = tuple(waiting.request for waiting in joiners)
    iterations = max((request.remaining for request in requests), default=0)
    estimated_s = iterations * float(fleet.step_s()[worker])
    return Assignment(fleet.names[worker], requests, joins=True, estimated_s=estimated_s, preempts=leaving)

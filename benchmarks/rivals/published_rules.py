"""The twelve rivals, each written from the rule of its paper in as few lines as the rule allows.

What a paper leaves open, or does that the simulator cannot (a waiting row keeps its cache), is said beside its rule.
Rivals see what `fusion` sees: arrivals, prompts, the predicted median and upper quantile, rows and costs.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from benchmarks.rivals.iteration_level import IterationLevel, PlannedRows, RivalRow, Rule, Seen, holds
from scheduling.length_distributions import drawn_length, van_der_corput
from scheduling.policies.fusion.fleet_arrays import FleetArrays, peak_tokens
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policies.fusion.length_buckets import WaitingRequest
from scheduling.policies.fusion.priority_key import FleetLoad
from scheduling.policy import Assignment, Policy, Worker
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request

# The first quantum of rivals that go by tokens so far, and the quantum of a request that LTR promotes. Not tuned.
QUANTUM_TOKENS, PROMOTED_TOKENS = 16, 64
RESERVED = 0.05  # the share of memory that Past-Future leaves free, not tuned
KEPT_FROM = 0.8  # TRAIL keeps a row that has this share of its predicted answer (the paper's c, which it varies)
SKIPPED_TOKENS = 256  # a prompt of so many tokens skips MLFQ's first queue; not tuned
# UniBoost's 1/γ, between first come, first served (0) and the least attained first, an iteration of the simulated
# machine and the prefill of a token there, in seconds. Not tuned.
BOOST_S, ITERATION_S, PREFILL_TOKEN_S = 20.0, 0.1, 2e-4
# Nested WAIT's segments, the first one's threshold in requests, and the share of memory that stays free. The paper
# derives them from rates that it knows. Not tuned.
SEGMENT_ENDS, FIRST_GROUP, BUFFER = (128, 512), 8, 0.1


def arrival(row: RivalRow, seen: Seen) -> float:
    """vLLM (Kwon et al., SOSP 2023): first come, first served, while the memory holds the prompts as they are."""
    return row.request.arrived_at


def past_peak_fits(rows: Sequence[RivalRow], worker: Worker, seen: Seen) -> bool:
    """Past-Future (Gong et al., ASPLOS 2025): admits in order of arrival if the peak of future memory fits.

    A row's length is drawn from those of past answers that are longer than what the row has.
    """
    past, left = seen.past, list[int]()
    for number, row in enumerate(rows, 1):
        shorter = bisect_right(past, row.generated)
        drawn = shorter + int(van_der_corput(number) * (len(past) - shorter))
        left.append((past[drawn] if drawn < len(past) else row.request.limit) - row.generated)
    cached = np.array([row.cached for row in rows], np.float64)
    peak = peak_tokens(cached, np.array(left, np.float64), worker.memory)
    return len(rows) == 1 or (peak <= (1 - RESERVED) * worker.memory.capacity_tokens)


def predicted_length(row: RivalRow, seen: Seen) -> float:
    """LTR (Fu et al., NeurIPS 2024): the shortest predicted answers run; who starves goes first for a quantum."""
    promoted = row.generated < seen.rejoined_at.get(row.request.id, -PROMOTED_TOKENS) + PROMOTED_TOKENS
    return 0.0 if promoted or seen.starves(row) else row.request.predicted


def predicted_remainder(row: RivalRow, seen: Seen) -> float:
    """TRAIL (Shahout et al., ICLR 2025): the shortest predicted remainder, predicted again while a row runs.

    The paper predicts from the model's states; here it is the median of what is left, given what was generated.
    """
    return drawn_length(row.request, 0.5, row.generated)


def lacks_much(row: RivalRow, first: RivalRow, seen: Seen) -> bool:
    """TRAIL: a row that has most of its predicted answer is not preempted."""
    return row.generated < KEPT_FROM * row.request.predicted


def gittins(row: RivalRow, seen: Seen) -> float:
    """Gittins' index (Scully and Harchol-Balter, WiOpt 2021) of the answer's predicted distribution, negative.

    It changes when a row's tokens reach a power of two, so that equal requests do not take turns at each decision.
    """
    request = row.request
    return -gittins_index(request.predicted, request.predicted_upper, request.limit, row.generated.bit_length())


@lru_cache(maxsize=100_000)
def gittins_index(predicted: int, upper: int, limit: int, age: int) -> float:
    """Return the most, over all tokens d, of P(the answer ends within d) / E(tokens that it takes within d).

    The answer has 2^(age - 1) tokens, or none at age 0. Its remainder is one of 16 equally likely quantiles.
    """
    request = Request("", 0.0, 1, limit, predicted, upper)
    generated = min(limit - 1, 1 << age >> 1)
    left = np.array([drawn_length(request, (n + 0.5) / 16, generated) for n in range(16)], np.float64)
    ended = np.arange(1, 17)
    return float(np.max(ended / (np.cumsum(left) + (16 - ended) * left)))


def boosted_arrival(row: RivalRow, seen: Seen) -> float:
    """UniBoost-like (Li et al., ICML 2026): the arrival minus a boost that the tokens generated so far use up.

    The boost is γ-Boost's ln(1 / (1 - exp(-γ·a))) / γ of the age a, which grows in powers of two; nothing is predicted.
    """
    age_s = (QUANTUM_TOKENS << (row.generated // QUANTUM_TOKENS).bit_length()) * ITERATION_S
    return row.request.arrived_at + BOOST_S * math.log(-math.expm1(-age_s / BOOST_S))


def worth_its_cache(row: RivalRow, first: RivalRow, seen: Seen) -> bool:
    """UniBoost: a row leaves if its rank is worse by more than the seconds of its next prefill."""
    return boosted_arrival(row, seen) - boosted_arrival(first, seen) > row.cached * PREFILL_TOKEN_S


def queue_number(row: RivalRow, seen: Seen) -> float:
    """FastServe's skip-join MLFQ (Wu et al., 2023): a quantum used up takes a request to the next of the queues.

    Long prompts skip the first queues, quanta double, and who starves returns to the first. The paper swaps a preempted
    row's cache out and in; here it is computed again.
    """
    skipped = (row.request.length // SKIPPED_TOKENS).bit_length()
    return 0 if seen.starves(row) else max(skipped, (row.generated // QUANTUM_TOKENS + 1).bit_length() - 1)


def clients_service(row: RivalRow, seen: Seen) -> float:
    """VTC (Sheng et al., OSDI 2024): the client served least goes first; an answer's token counts as two of a prompt.

    The clients are the workload's applications. All are active from the start: none of them pauses for long here.
    """
    return seen.served[row.request.application]


def response_ratio(row: RivalRow, seen: Seen) -> float:
    """SGLang's HRRN (2026): the highest ratio of waiting to the tokens to prefill, which stand for the service."""
    return -(seen.now - row.request.arrived_at) / row.cached


def leaves_buffer(rows: Sequence[RivalRow], worker: Worker, seen: Seen) -> bool:
    """Nested WAIT: a share of the memory stays free for the rows' growth."""
    return holds(rows, worker, round(BUFFER * worker.memory.capacity_tokens / len(rows)))


class NestedWait(IterationLevel):
    """Nested WAIT (Ao et al., 2025): groups join at a threshold, and who outlives a segment waits for the next group.

    A segment's threshold is the first one's times the share of answers that reach it. In the paper a row keeps its
    cache between two segments; here it is computed again. Idle workers take who is there.
    """

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let the groups join that have reached their segment's threshold, the last segment's first."""
        planned = self.observe(workers, now)
        idle, reached = not any(rows.rows for rows in planned), (0, *SEGMENT_ENDS)
        for segment in reversed(range(len(reached))):
            group = [one for one in self._waiting.values() if bisect_right(SEGMENT_ENDS, one.generated) == segment]
            ended = bisect_right(self.seen.past, reached[segment]) / max(1, len(self.seen.past))
            if idle or len(group) >= FIRST_GROUP * (1 - ended):
                self.fill(planned, group)
        return self.assignments(planned)


class LMetric(IterationLevel):
    """LMetric (Zhang et al., OSDI 2026): routes an arrival to the least of new prefill tokens times batch size.

    Each worker serves its own queue in order of arrival. No prompts share a beginning here.
    """

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Route what has arrived, and fill each worker from its own queue."""
        planned = self.observe(workers, now)
        queues: Mapping[str, list[Request]] = {worker.name: [] for worker in workers}
        for request in sorted(self._waiting.values(), key=lambda one: (one.arrived_at, one.id)):
            if request.id not in self.seen.worker_of:
                best = min(planned, key=lambda rows: lmetric(request, rows, queues[rows.worker.name]))
                self.seen.worker_of[request.id] = best.worker.name
            queues[self.seen.worker_of[request.id]].append(request)
        for rows in planned:
            self.fill([rows], queues[rows.worker.name])
        return self.assignments(planned)


def lmetric(request: Request, rows: PlannedRows, queue: Sequence[Request]) -> float:
    """Return a worker's score for a request."""
    return (request.prefill + sum(one.prefill for one in queue)) * (len(rows.rows) + len(queue) + 1)


class ShortestFirst(Fusion):
    """Shortest first with our own admission, placement and joins: `fusion` whose order has no arrivals and no guard."""

    def add(self, request: Request, now: float) -> None:
        """Let a request wait that is never due."""
        self._queues.add(WaitingRequest(request, (1e12,) * 4))

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        """Trust predictions and prompts in full."""

    def _load(self, fleet: FleetArrays) -> FleetLoad:
        """Return the load with a scale of the delay beside which arrivals do not count."""
        return replace(super()._load(fleet), drain_s=1e7)  # keys stay above those of urgent requests


RIVALS: Mapping[str, Callable[[], Policy]] = {
    "fcfs": partial(IterationLevel, Rule(arrival)),
    "past-future": partial(IterationLevel, Rule(arrival, past_peak_fits)),
    "ltr": partial(IterationLevel, Rule(predicted_length, preempts=True)),
    "trail": partial(IterationLevel, Rule(predicted_remainder, preempts=True, may_leave=lacks_much)),
    "gittins": partial(IterationLevel, Rule(gittins, preempts=True)),
    "uniboost": partial(IterationLevel, Rule(boosted_arrival, preempts=True, may_leave=worth_its_cache)),
    "mlfq": partial(IterationLevel, Rule(queue_number, preempts=True)),
    "nested-wait": partial(NestedWait, Rule(arrival, leaves_buffer, segment_ends=SEGMENT_ENDS)),
    "vtc": partial(IterationLevel, Rule(clients_service, ranks_change=True)),
    "lmetric": partial(LMetric, Rule(arrival)),
    "hrrn": partial(IterationLevel, Rule(response_ratio)),
    "shortest": ShortestFirst,
}
PREDICTING = ("fusion", "ltr", "trail", "gittins", "shortest")  # what the others do does not depend on predictions

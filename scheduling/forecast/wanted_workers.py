"""Computes how many workers a model needs for a target response time, and the seconds of waiting work for one worker.

Nothing is simulated. The result is the sum of three numbers of fully busy workers: for the requests that arrive at the
rate of the last minutes, for the requests that wait already and should be served within the target, and for the bulk
jobs, each of which should be served within its window. Two things are left out: how well a policy orders and groups
requests, and how arrivals cluster within a second. BUSY covers both; the tests compare the result with the simulator's
response times.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from scheduling.policy import Worker
from scheduling.sharing.background.background_part import TypicalRow
from scheduling.sharing.background.deadlines import MARGIN_S, Work, most_rows, rows_per_s

# A worker may be busy with arriving requests for this share of its time. With a larger share a burst has to wait for
# the burst before it. With this one the mean response time stays within the target in the simulations of
# `tests/unit/scheduling/forecast/test_wanted_workers.py`. Not tuned.
BUSY = 0.8
# Serving may take half of the target, because the other half may be spent waiting. It may always take a quarter longer
# than an undisturbed answer, because no number of workers would be faster than that answer. Not tuned.
SERVING_SHARE, STRETCH = 0.5, 1.25


NO_WORK, SHORTEST_ROW = Work(), TypicalRow(1, 1)


@dataclass(frozen=True, slots=True)
class Demand:
    """The work for a model's workers: arrivals and their mean row, waiting and running requests, bulk jobs.

    `jobs` has the remaining work of each bulk job and the seconds until its window ends; no other field counts the
    lines of bulk jobs.
    """

    arrivals_per_s: float = 0.0
    arriving: TypicalRow = SHORTEST_ROW
    waiting: Work = NO_WORK
    running: int = 0  # requests that workers serve now
    jobs: Sequence[tuple[Work, float]] = ()

    @property
    def idle(self) -> bool:
        """Return whether there is no work."""
        return not (self.arrivals_per_s or self.waiting.requests or self.running or self.jobs)


def work_s(demand: Demand, workers: Collection[Worker]) -> float:
    """Return the seconds in which one worker alone would serve all waiting requests, lines of bulk jobs included."""
    return sum(_busy_s(work, workers) for work in (demand.waiting, *(work for work, _ in demand.jobs)))


def workers_wanted(demand: Demand, workers: Collection[Worker], target_s: float) -> int:
    """Return how many workers like these are needed for a mean response time of at most `target_s` seconds.

    Return 0 without work, and 1 if nothing is known of the workers.
    """
    if demand.idle or not workers:
        return int(not demand.idle)
    row = demand.arriving
    sizes = [_rows_within(worker, row, target_s) for worker in workers]
    per_s = _mean(rows_per_s(worker, row, size) for worker, size in zip(workers, sizes, strict=True))
    present = max(demand.arrivals_per_s / per_s / BUSY, demand.running / _mean(sizes))
    late = _busy_s(demand.waiting, workers) / target_s
    bulk = sum(_busy_s(work, workers) / max(MARGIN_S, left_s - MARGIN_S) for work, left_s in demand.jobs)
    return max(1, math.ceil(present + late + bulk))


def _busy_s(work: Work, workers: Collection[Worker]) -> float:
    """Return the seconds for which the work keeps one worker busy, or 0 if nothing is known of the workers."""
    if not work.requests or not workers:
        return 0.0
    row = work.typical_row
    return work.requests / _mean(rows_per_s(one, row, most_rows(one, row, work.requests)) for one in workers)


def _rows_within(worker: Worker, row: TypicalRow, target_s: float) -> int:
    """Return the most rows at once, at least one, with which serving takes no longer than it may of the target."""
    fewest, most = 1, most_rows(worker, row, worker.memory.capacity_tokens)
    within_s = max(SERVING_SHARE * target_s, STRETCH * worker.costs.serve_s(1, row.length, row.remaining))
    while fewest < most:  # serving takes longer with more rows
        middle = (fewest + most + 1) // 2
        if worker.costs.serve_s(middle, row.length, row.remaining) <= within_s:
            fewest = middle
        else:
            most = middle - 1
    return fewest


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)

"""Computes the part of the fleet's memory that background rows may fill while other requests come.

The background has as many workers for itself as other requests can spare. Other requests get the fewest workers on
which their iterations take hardly longer than on all, because a machine serves a few rows at nearly the pace of one. A
worker that serves both kinds, such as a single worker, takes no more background rows than keep it busy.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.costs import linearized
from scheduling.policy import RunningRow, Worker
from scheduling.request import Request

# This limits how far the background slows others down. On a worker that serves both, its rows may fill this share of
# the unreserved memory. Others' iterations may become longer by this share times the multiples below.
BACKGROUND_SHARE = 0.6
# The background takes another worker for itself below the first multiple of the share, and gives one back, where its
# rows are then parked, above the second. With a share of 0.6 others' iterations may take 1.24 and 1.36 times as long.
# Simulated on four workers at 0.3 of capacity (docs/results/api.md) others' P99 is 1.33 times their P99 alone, with
# 71 % of the spare capacity used; with multiples of 1/3 and 1/2 it is 1.21 times with 50 %.
TAKEN_BELOW, KEPT_BELOW = 0.4, 0.6
# On a worker that serves both, others have reserved bytes: this multiple of what their rows will hold at their ends,
# because they arrive in bursts and are padded in rectangular memory. Not tuned.
KEPT_FREE = 3.5
# After these seconds without other requests, background requests may fill all memory; the next other request then parks
# the rows of a worker. It is several times the gap between the calls of a person at work; not tuned.
QUIET_S = 60.0
# Once fewer rows of others run, their expected number falls two thirds of the way in these seconds, so that the
# background neither takes nor gives back a worker at each burst. Several times as long as an answer takes; not tuned.
SETTLE_S = 30.0
# On a worker shared with other requests, background rows stop at this share of the throughput that its full memory
# would give: if few rows keep a machine busy, more rows only make each step longer. On the simulated worker these rows
# fill 0.6 of the memory, so there BACKGROUND_SHARE decides (docs/results/api.md).
ENOUGH_THROUGHPUT = 0.8
# Between a row's end and the start of the next row in its place lie these seconds: half of the planner's 0.06 s step, a
# message and a transaction. They matter if rows take only a fraction of a second.
REFILL_S = 0.05


@dataclass(frozen=True, slots=True)
class TypicalRow:
    """The mean prompt and the mean remaining tokens of some requests."""

    length: int
    remaining: int


def typical_row(requests: Collection[Request]) -> TypicalRow:
    """Return the mean prompt and the mean remaining tokens of at least one request."""
    length = sum(request.prefill for request in requests) / len(requests)
    return TypicalRow(round(length), max(1, round(sum(request.remaining for request in requests) / len(requests))))


@dataclass(frozen=True, slots=True)
class BackgroundPart:
    """The workers that the background has for itself, and the bytes that it may fill now, by worker."""

    own: frozenset[str]
    filled_bytes: Mapping[str, int]


# If batches run to completion, no policy gives a busy worker more work, so memory needs no parts.
NO_PART = BackgroundPart(frozenset(), {})


class ChangingPart:
    """Computes the background's part from decision to decision; BACKGROUND_SHARE explains `share`."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._others_at = -math.inf  # the instant at which the last other request came
        self._expected_rows = 0.0  # the expected rows of other requests: as many as run, or ran lately
        self._decided_at = 0.0

    def others_came(self, now: float) -> None:
        """Keep a part of the memory free for other requests from now on, for QUIET_S."""
        self._others_at = now

    def at(self, workers: Sequence[Worker], likely: Collection[Request], now: float) -> BackgroundPart:
        """Return the part for background requests like the `likely` ones; there must be at least one."""
        rows = len(others_rows(workers))
        kept = math.exp((self._decided_at - now) / SETTLE_S)
        self._expected_rows = rows + kept * max(0.0, self._expected_rows - rows)
        self._decided_at = now
        if now - self._others_at > QUIET_S:
            return BackgroundPart(frozenset(), {worker.name: worker.memory.theta_bytes for worker in workers})
        return background_part(workers, self._share, typical_row(likely), self._expected_rows / max(1, rows))


def background_part(workers: Iterable[Worker], share: float, row: TypicalRow, growth: float = 1.0) -> BackgroundPart:
    """Return the background's part while other requests come, whose rows will be `growth` times as many as now.

    Background requests are assumed to be like `row`. In each group of workers with equal abilities they get some
    workers for themselves, first workers that serve no others; on a worker that still does, they wait until others'
    rows have ended. If a group can spare no worker, they get a part of one of its workers.
    """
    by_ability: dict[frozenset[str], list[Worker]] = {}
    for worker in workers:
        by_ability.setdefault(worker.lacks, []).append(worker)
    own: set[str] = set()
    filled_bytes: dict[str, int] = {}
    for alike in by_ability.values():
        first, *_ = in_order = sorted(alike, key=_least_shared_first)
        spared = in_order[: workers_to_spare(alike, share, growth)]
        own.update(worker.name for worker in spared)
        filled_bytes |= {worker.name: worker.memory.theta_bytes for worker in spared if not others_rows([worker])}
        if not spared:
            filled_bytes[first.name] = _shared_bytes(first, alike, share, row)
    return BackgroundPart(frozenset(own), {name: size for name, size in filled_bytes.items() if size > 0})


def others_rows(workers: Iterable[Worker]) -> list[RunningRow]:
    """Return the rows of these workers that are not in the background."""
    return [row for worker in workers for row in worker.rows if not row.request.background]


def _least_shared_first(worker: Worker) -> tuple[bool, bool, int, str]:
    """Return a sort key: workers without others' rows first, then those with background rows, then the largest."""
    others = others_rows([worker])
    return bool(others), len(others) == len(worker.rows), -worker.memory.theta_bytes, worker.name


def _shared_bytes(worker: Worker, alike: Sequence[Worker], share: float, row: TypicalRow) -> int:
    """Return the bytes that background rows may fill on a worker that also serves other requests."""
    memory = worker.memory
    others = others_rows(alike)
    final_tokens = sum(row.request.length + max(row.generated, row.request.predicted) for row in others)
    kept_bytes = KEPT_FREE * memory.held(final_tokens, len(others)) * memory.delta_bytes
    left_bytes = share * (sum(one.memory.theta_bytes for one in alike) - kept_bytes)
    busy_bytes = memory.batch_bytes(enough_rows(worker, row), row.length, row.remaining)
    return min(memory.theta_bytes, int(left_bytes), busy_bytes) // memory.delta_bytes * memory.delta_bytes


def workers_to_spare(alike: Sequence[Worker], share: float, growth: float) -> int:
    """Return how many of these workers the background may have for itself."""
    others = others_rows(alike)
    in_use = sum(len(others_rows([worker])) < len(worker.rows) for worker in alike)
    iteration_s = _iteration_s(alike[0], others)
    on_all_s = iteration_s(growth / len(alike))
    for spared in range(len(alike) - 1, 0, -1):
        most = 1 + share * (KEPT_BELOW if spared <= in_use else TAKEN_BELOW)
        if iteration_s(growth / (len(alike) - spared)) <= most * on_all_s:
            return spared
    return 0


def _iteration_s(worker: Worker, rows: Sequence[RunningRow]) -> Callable[[float], float]:
    """Return the seconds of an iteration by the part of the rows that are in it, joins in their places included."""
    curves = linearized(worker.costs)
    if not rows:
        return lambda _: curves.decode_step_s(1, 0)
    cached = [row.request.length + row.generated for row in rows]
    read = sum(cached) / len(rows) if worker.memory.paged else max(cached)
    typical = typical_row([row.request for row in rows])
    prefill_s = curves.prefill_s(1, typical.length) / typical.remaining
    return lambda part: curves.decode_step_s(part * len(rows), read) + part * len(rows) * prefill_s


def enough_rows(worker: Worker, row: TypicalRow) -> int:
    """Return the fewest rows with `ENOUGH_THROUGHPUT` of the throughput of the most rows that the worker can run."""
    most = worker.memory.fixed_batch_size(row.length, row.remaining)
    sizes = np.arange(1, most + 1)
    lengths, generated = np.full_like(sizes, row.length), np.full_like(sizes, row.remaining)
    rows_per_s = sizes / (worker.costs.serve_many_s(sizes, lengths, generated) + REFILL_S)
    return int(np.argmax(rows_per_s >= ENOUGH_THROUGHPUT * rows_per_s[-1])) + 1

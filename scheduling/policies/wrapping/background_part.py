"""Computes the part of the fleet's memory that background rows may fill while other requests come.

The background has as many workers for itself as other requests can spare. Those requests are served by the fewest
workers on which their iterations take hardly longer than on all, because a machine serves a few rows at nearly the pace
of one. A worker that serves both, such as the only one, takes no more background rows than keep it busy.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.costs import linearized
from scheduling.policy import RunningRow, Worker
from scheduling.request import Request

# How far the background may slow others down: the share of unreserved memory that its rows may fill on a worker that
# serves both, and times the multiples below the share by which the others' iterations may become longer.
BACKGROUND_SHARE = 0.6
# The multiples of the share at which the background takes another worker for itself, and at which it gives one back,
# which parks its rows there. With them and a share of 0.6 the others' iterations may take 1.24 and 1.36 times as long.
# Simulated on four workers at 0.3 of capacity (docs/results/api.md) that gives a P99 of 1.33 times that alone with 71 %
# of the spare capacity used; multiples of 1/3 and 1/2 give 1.21 with 50 %.
TAKEN_BELOW, KEPT_BELOW = 0.4, 0.6
# Bytes reserved for other requests on a worker that serves both, as a multiple of what their rows will hold at their
# ends, because they arrive in bursts, and are padded in rectangular memory. Not tuned.
KEPT_FREE = 3.5
# After this time without other requests, background requests may fill all memory; the next other request then parks the
# rows of a worker. Several times the gap between the calls of a person at work; not tuned.
QUIET_S = 60.0
# The expected number of others' rows falls by two thirds in this time once fewer run, so that the background neither
# takes nor gives back a worker at each burst. Several times as long as an answer takes; not tuned.
SETTLE_S = 30.0
# On a worker shared with other requests, background rows stop at this share of the throughput that its full memory
# would give: if few rows keep a machine busy, more rows only make each step longer. On the simulated worker that is 0.6
# of the memory, so there BACKGROUND_SHARE decides (docs/results/api.md).
ENOUGH_THROUGHPUT = 0.8
# Seconds between a row's end and the start of the next row in its place: half of the planner's 0.06 s step, a message
# and a transaction. It matters if rows take only a fraction of a second.
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
    """The workers that the background has for itself, and the bytes that it may fill on each that it may use now."""

    own: frozenset[str]
    filled_bytes: Mapping[str, int]


# Where batches run to completion, no policy gives a busy worker more, so that its memory needs no parts.
NO_PART = BackgroundPart(frozenset(), {})


class ChangingPart:
    """The background's part from decision to decision; `share` is explained at BACKGROUND_SHARE."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._others_at = -math.inf  # when the last of the others came
        self._expected_rows = 0.0  # rows of other requests: as many as run, or ran lately
        self._decided_at = 0.0

    def others_came(self, now: float) -> None:
        """Keep a part free for others from now on."""
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
    """Return the background's part while other requests come, which will have about `growth` times their present rows.

    Background requests are assumed to be like `row`. In each group of workers with equal abilities they get some
    workers for themselves, first those that serve no others, and wait there until others' rows have ended. If a group
    can spare none, they get a part of one of its workers.
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
    """Return a sort key: workers without others' rows first, among them those with background rows, then large ones."""
    others = others_rows([worker])
    return bool(others), len(others) == len(worker.rows), -worker.memory.theta_bytes, worker.name


def _shared_bytes(worker: Worker, alike: Sequence[Worker], share: float, row: TypicalRow) -> int:
    """Return the bytes that background rows may fill on a worker that serves others, too."""
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
    on_all_s = _iteration_s(alike[0], others, growth / len(alike))
    for spared in range(len(alike) - 1, 0, -1):
        most = 1 + share * (KEPT_BELOW if spared <= in_use else TAKEN_BELOW)
        if _iteration_s(alike[0], others, growth / (len(alike) - spared)) <= most * on_all_s:
            return spared
    return 0


def _iteration_s(worker: Worker, rows: Sequence[RunningRow], part: float) -> float:
    """Return the seconds of an iteration of this part of the rows, and of its share of the joins to come."""
    curves = linearized(worker.costs)
    if not rows:
        return curves.decode_step_s(1, 0)
    cached = [row.request.length + row.generated for row in rows]
    read = sum(cached) / len(rows) if worker.memory.paged else max(cached)
    typical = typical_row([row.request for row in rows])
    size = part * len(rows)
    return curves.decode_step_s(size, read) + size * curves.prefill_s(1, typical.length) / typical.remaining


def enough_rows(worker: Worker, row: TypicalRow) -> int:
    """Return the fewest rows that give `ENOUGH_THROUGHPUT` of the throughput of as many rows as the worker can run."""
    most = worker.memory.fixed_batch_size(row.length, row.remaining)
    sizes = np.arange(1, most + 1)
    lengths, generated = np.full_like(sizes, row.length), np.full_like(sizes, row.remaining)
    rows_per_s = sizes / (worker.costs.serve_many_s(sizes, lengths, generated) + REFILL_S)
    return int(np.argmax(rows_per_s >= ENOUGH_THROUGHPUT * rows_per_s[-1])) + 1

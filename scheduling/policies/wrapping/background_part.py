"""The part of the fleet's memory that background rows may fill while other requests come.

They fill few workers completely, so that the others start at once on the remaining ones, where their steps take no
longer; and on a worker shared with others they stop at the rows that keep it busy.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduling.policy import Worker
from scheduling.request import Request

# The share of unreserved memory that background requests may fill while others arrive. Simulated on four workers at 0.3
# and 0.6 of capacity with the KEPT_FREE below, the background gets 86 and 83 % of the spare capacity, and the others'
# P99 is 1.17 and 1.23 times as long as alone with lines in order of arrival (docs/results/api.md). A single
# worker needs a smaller share.
BACKGROUND_SHARE = 0.6
# Bytes reserved for other requests, as a multiple of what their rows will hold at their ends, because they arrive in
# bursts. With 2 other requests wait 1.4 times as long at 0.6 of capacity; with 4 the background gets three quarters of
# the spare capacity.
KEPT_FREE = 3.5
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

    @property
    def tokens(self) -> int:
        """The tokens that the row holds at its end."""
        return self.length + self.remaining


def typical_row(requests: Collection[Request]) -> TypicalRow:
    """Return the mean prompt and the mean remaining tokens of at least one request."""
    length = sum(request.prefill for request in requests) / len(requests)
    return TypicalRow(round(length), max(1, round(sum(request.remaining for request in requests) / len(requests))))


def background_part(workers: Iterable[Worker], share: float, row: TypicalRow) -> list[Worker]:
    """Return the workers that background requests may use, each with the memory that they may fill there.

    Background requests are assumed to be like `row`. Among workers with equal abilities they get all memory of the
    largest, then of the next, and a part of the last. The remaining workers serve only other requests.
    """
    by_ability: dict[frozenset[str], list[Worker]] = {}
    for worker in workers:
        by_ability.setdefault(worker.lacks, []).append(worker)
    return [part for alike in by_ability.values() for part in _largest_first(alike, share, row)]


def _largest_first(alike: Sequence[Worker], share: float, row: TypicalRow) -> Iterator[Worker]:
    not_kept = sum(worker.memory.theta_bytes - KEPT_FREE * _others_bytes(worker) for worker in alike)
    left_bytes = max(0, int(share * not_kept))
    for worker in sorted(alike, key=lambda one: (-one.memory.theta_bytes, one.name)):
        theta_bytes = worker.memory.theta_bytes
        if left_bytes < theta_bytes:
            theta_bytes = min(left_bytes, enough_rows(worker, row) * row.tokens * worker.memory.delta_bytes)
        left_bytes = max(0, left_bytes - worker.memory.theta_bytes)
        if theta_bytes >= worker.memory.delta_bytes:
            yield replace(worker, memory=replace(worker.memory, theta_bytes=theta_bytes))


def enough_rows(worker: Worker, row: TypicalRow) -> int:
    """Return the fewest rows that give `ENOUGH_THROUGHPUT` of the throughput of as many rows as the worker can run."""
    most = max(1, min(worker.memory.capacity_tokens // row.tokens, worker.memory.most_rows))
    sizes = np.arange(1, most + 1)
    lengths, generated = np.full_like(sizes, row.length), np.full_like(sizes, row.remaining)
    rows_per_s = sizes / (worker.costs.serve_many_s(sizes, lengths, generated) + REFILL_S)
    return int(np.argmax(rows_per_s >= ENOUGH_THROUGHPUT * rows_per_s[-1])) + 1


def _others_bytes(worker: Worker) -> int:
    """Return the bytes that the others' rows will hold at their predicted ends."""
    others = (row for row in worker.rows if not row.request.background)
    tokens = sum(row.request.length + max(row.generated, row.request.predicted) for row in others)
    return tokens * worker.memory.delta_bytes

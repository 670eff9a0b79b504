"""Chooses the background rows that leave a worker when other requests join it.

Other requests are assigned as if no background row ran. Background rows in their way are parked, and resume with their
tokens once there is capacity: our engine keeps their keys and values, a server such as vLLM gets their tokens again.
So background rows leave only when other requests join their worker, and only those beyond the background's part there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from scheduling.policies.fusion.fleet_arrays import peak_tokens
from scheduling.policy import Assignment, RunningRow, Worker
from scheduling.sharing.background.row_shares import newest_first

# Rows leave once the background's part is exceeded by this share. Others' rows come and go, and without this slack
# every second one that comes would park a row. Not tuned.
SLACK = 0.25


def without_background(worker: Worker) -> Worker:
    """Return the worker as it would be if all background rows were parked."""
    return replace(worker, rows=tuple(row for row in worker.rows if not row.request.background))


def with_these(workers: Iterable[Worker], assignments: Iterable[Assignment], now: float) -> dict[str, Worker]:
    """Return the workers by name, as they will be with these assignments."""
    given = {worker.name: worker for worker in workers}
    for assignment in assignments:
        given[assignment.worker] = given[assignment.worker].given(assignment, now)
    return given


def parked_for(
    worker: Worker, joining: Sequence[Assignment], part_tokens: int, leaving: Collection[str]
) -> list[RunningRow]:
    """Return the background rows that leave this worker so that others can join it, in the order of `newest_first`.

    Rows in `leaving` are leaving already. No further row leaves if all rows fit the memory and, with SLACK, the part.
    """
    others = without_background(worker).rows
    joiners = tuple(RunningRow(request, request.generated, 0.0) for one in joining for request in one.requests)
    staying = [row for row in worker.rows if row.request.background and row.request.id not in leaving]
    slots = min([worker.memory.most_rows, *(one.most_rows for one in joining if one.most_rows is not None)])

    def exceeds(tokens: float) -> bool:
        rows = [*others, *joiners, *staying]
        return len(rows) > slots or _peak_tokens(worker, rows) > tokens

    capacity_tokens = worker.memory.capacity_tokens
    parked: list[RunningRow] = []
    if not joining or not staying or not exceeds(min(capacity_tokens, (1 + SLACK) * part_tokens)):
        return parked
    for row in newest_first(staying):
        if not exceeds(min(capacity_tokens, part_tokens)):
            break
        staying.remove(row)
        parked.append(row)
    return parked


def park(
    workers: Iterable[Worker], assignments: Sequence[Assignment], parts: Mapping[str, int], leaving: Collection[str]
) -> list[Assignment]:
    """Return others' assignments; each worker's first one names the background rows that leave before others join.

    `parts` has the bytes that the background may fill on each worker; a worker without an entry counts as 0.
    """
    parking = []
    for worker in workers:
        joining = [one for one in assignments if one.worker == worker.name]
        part_tokens = parts.get(worker.name, 0) // worker.memory.delta_bytes
        ids = tuple(row.request.id for row in parked_for(worker, joining, part_tokens, leaving))
        parking += [replace(one, preempts=one.preempts + ids) for one in joining[:1]] + joining[1:]
    return parking


def _peak_tokens(worker: Worker, rows: Sequence[RunningRow]) -> float:
    """Return the most tokens that these rows are predicted to hold at once."""
    cached = np.array([row.request.length + row.generated for row in rows], np.float64)
    remaining = np.array([max(1, row.request.predicted - row.generated) for row in rows], np.float64)
    return peak_tokens(cached, remaining, worker.memory)

"""Which background rows leave their batches, or do not join, so that each bulk job gets its share of the running rows.

Shares are those of the tenants by weight, and alike for a tenant's jobs. A job that waits with less than half of its
share of the rows gets the difference at once. A job whose last lines run is slowed down by the rows of others on its
worker: these are so few that an iteration takes at most as many times longer as the job's share is small. So a small
job takes about twice as long beside one large job of another tenant as it takes alone.

A row that has left before leaves again only once it has generated `PROGRESS_TOKENS` since, so that each one ends.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduling.costs import linearized
from scheduling.policies.wrapping.background_queue import Job, job_of
from scheduling.policy import RunningRow, Worker

# The part of the time that a job may take beside others which its iterations may take; the rest is for the prefills of
# others, which stop all rows, and for the time until its rows join. Not tuned.
OF_DECODING = 0.75
# Tokens that a row generates between two departures. Few would make rows prefill again and again; many would keep small
# jobs waiting for them. Not tuned.
PROGRESS_TOKENS = 64


def shares_of(jobs: Iterable[Job], weight_of: Callable[[str], float]) -> dict[Job, float]:
    """Return the share of the capacity that each of these jobs is entitled to."""
    of_tenant: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        of_tenant[job[0]].append(job)
    total = sum(map(weight_of, of_tenant))
    return {job: weight_of(job[0]) / total / len(some) for some in of_tenant.values() for job in some}


def rows_making_way(
    rows: Collection[RunningRow], job: Job, waiting: int, shares: Mapping[Job, float]
) -> list[RunningRow]:
    """Return the background rows that leave for a job with `waiting` lines and less than half of its share; often none.

    These are the newest rows of the jobs that have the most rows above their own shares.
    """
    held = _by_job(rows)
    above = {other: len(some) - shares[other] * len(rows) for other, some in held.items()}
    own = len(held.pop(job, ()))
    most = min(waiting, int(shares[job] * len(rows)) - own)
    if 2 * own >= shares[job] * len(rows) or most <= 0:
        return []
    leaving: list[RunningRow] = []
    for other in sorted(held, key=lambda one: (-above[one], one)):
        may_leave = [row for row in newest_first(held[other]) if _may_leave(row)]
        leaving += may_leave[: max(0, min(int(above[other]), most - len(leaving)))]
    return leaving


def most_rows_beside(
    worker: Worker, waiting: Mapping[Job, int], shares: Mapping[Job, float], joining_tokens: int = 0
) -> int | None:
    """Return the most rows of a worker that keep the iterations of its small jobs short; None if any number does.

    A job is small if its rows and its `waiting` lines are together less than its share of those of all jobs. The rows
    that run now do not decide it, because they change with the limit. A row of `joining_tokens` tokens is taken to be
    among the rows.
    """
    held = _by_job(worker.rows)
    lines = {job: len(rows) + waiting.get(job, 0) for job, rows in held.items()}
    total = sum(map(len, held.values())) + sum(waiting.values())
    small = [job for job, count in lines.items() if count < shares[job] * total]
    limits = (_most_rows(worker, held[job], lines[job], shares[job], joining_tokens) for job in small)
    return min(limits, default=None)


def limited_beside_small_jobs(
    workers: Iterable[Worker], waiting: Mapping[Job, int], shares: Mapping[Job, float], joining_tokens: int
) -> list[Worker]:
    """Return the workers, with a limit of rows where more would slow a small job down too much.

    The limit counts a joiner of `joining_tokens` tokens: if long rows left for a small job, they would otherwise join
    again at once, since beside short rows more are allowed.
    """
    limited = []
    for worker in workers:
        most = most_rows_beside(worker, waiting, shares, joining_tokens)
        if most is not None:
            memory = replace(worker.memory, max_rows=max(1, min(most, worker.memory.most_rows)))
            worker = replace(worker, memory=memory)
        limited.append(worker)
    return limited


def rows_above(worker: Worker, most: int, shares: Mapping[Job, float]) -> list[RunningRow]:
    """Return the background rows that leave so that the worker has `most` rows: the newest of the largest job."""
    held = _by_job(worker.rows)
    largest = max(held, key=lambda job: (len(held[job]) / shares[job], job))
    may_leave = [row for row in newest_first(held[largest]) if _may_leave(row)]
    return may_leave[: max(0, len(worker.rows) - most)]


def _by_job(rows: Iterable[RunningRow]) -> dict[Job, list[RunningRow]]:
    """Return the background rows by their jobs."""
    held: defaultdict[Job, list[RunningRow]] = defaultdict(list)
    for row in rows:
        if row.request.background:
            held[job_of(row.request)].append(row)
    return held


def _most_rows(worker: Worker, own: Sequence[RunningRow], lines: int, share: float, joining_tokens: int) -> int:
    """Return the most rows with which an iteration takes at most `OF_DECODING` / share times as long as with `lines`.

    `own` are the running rows of these lines. Rows of requests that are not in the background run in both cases.
    """
    alone = [*own, *(row for row in worker.rows if not row.request.background)]
    count = lines + len(alone) - len(own)
    curves, read = linearized(worker.costs), _read_length(worker, worker.rows, joining_tokens)
    longest_s = curves.decode_step_s(count, _read_length(worker, alone)) * OF_DECODING / share
    row_s = curves.decode_step_s(1, read) - curves.decode_step_s(0, read)
    if row_s <= 0:
        return worker.memory.most_rows
    return max(count, int((longest_s - curves.decode_step_s(0, read)) / row_s))


def _read_length(worker: Worker, rows: Sequence[RunningRow], joining_tokens: int = 0) -> float:
    """Return the cached tokens that an iteration reads for each row: those of the longest, or of the mean if paged."""
    cached = [row.request.length + row.generated for row in rows] + ([joining_tokens] if joining_tokens else [])
    return sum(cached) / len(cached) if worker.memory.paged else max(cached)


def newest_first(rows: Iterable[RunningRow]) -> list[RunningRow]:
    """Return these rows in the order in which they leave.

    Rows that never left come first, then those that have generated enough since; among each the last to join is first.
    """
    return sorted(
        rows,
        key=lambda row: (
            not _may_leave(row),
            row.request.generated > 0,
            -row.started_at,
            row.generated,
            row.request.id,
        ),
    )


def _may_leave(row: RunningRow) -> bool:
    return not row.request.generated or row.generated - row.request.generated >= PROGRESS_TOKENS

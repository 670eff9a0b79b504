"""Chooses background rows that leave their batches or must not join, so that each bulk job gets its share of the rows.

Tenants have shares by weight, and a tenant's jobs have equal shares. A waiting job that has less than half of its share
of the rows gets the difference at once. The rows of other jobs on a small job's worker slow the small job down, and so
do their prefills. Their number is limited so that the small job takes about 1 / share times as long as alone: beside
one large job of another tenant (share 1/2) about twice as long. One row of other jobs is always allowed, however slow
it makes the small job, so that no job waits for a stream of small jobs.

Rows join in groups of a few seconds of prefills, so that no request waits long for a large job's first rows.

A row leaves only once it has generated a token, and again only after `PROGRESS_TOKENS` more, so that every row ends.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from scheduling.costs import linearized
from scheduling.policy import RunningRow, Worker
from scheduling.request import BACKGROUND_TIERS, Job, Request, job_of
from scheduling.sharing.background.background_part import others_rows, typical_row

# Of the time that a small job may take beside others, this share is for iterations with others' prefills between them,
# and the rest for the time until its rows join. With 0.9 two of nine simulated jobs of ten lines took more than twice
# as long as alone.
OF_ITERATIONS = 0.8
# A row generates these tokens between two departures. With fewer, rows would be prefilled again and again; with more,
# small jobs would wait for them. Not tuned.
PROGRESS_TOKENS = 64
# Background rows stop joining a worker that still has prefills of these seconds to do, because no request can join
# meanwhile. Without this limit the first 137 rows of a simulated job were prefilled for 9 s, and ten lines that came
# took 2.2 times as long as alone, with it 1.6 times; a job of 1,000 lines takes 0.82 to 1.04 times as long as without.
JOIN_S = 2.0
ASKED_AGAIN_S = 0.25  # the policy is asked again after these seconds, a few iterations, whether such prefills are over


def shares_of(jobs: Iterable[Job], weight_of: Callable[[str], float]) -> dict[Job, float]:
    """Return the share of the capacity that each of these jobs is entitled to."""
    of_tenant: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        of_tenant[job.tenant].append(job)
    total = sum(map(weight_of, of_tenant))
    return {job: weight_of(job.tenant) / total / len(some) for some in of_tenant.values() for job in some}


def rows_wanted(rows: Collection[RunningRow], job: Job, waiting: int, shares: Mapping[Job, float]) -> int:
    """Return how many rows a job with `waiting` lines should get at once: 0 if it has at least half of its share."""
    own = sum(job_of(row.request) == job for row in rows)
    entitled = shares[job] * len(rows)
    return 0 if 2 * own >= entitled else max(0, min(waiting, int(entitled) - own))


def rows_making_way(
    rows: Collection[RunningRow],
    job: Job,
    wanted: int,
    shares: Mapping[Job, float],
    at_most: Mapping[Job, int] = MappingProxyType({}),
) -> list[RunningRow]:
    """Return the background rows that leave for the `wanted` rows of a job.

    These are the newest rows of the jobs that have the most rows above their own shares; `at_most` limits their number
    for some jobs.
    """
    held = _by_job(rows)
    held.pop(job, None)
    above = {
        other: min(len(some) - shares[other] * len(rows), at_most.get(other, len(some))) for other, some in held.items()
    }
    leaving: list[RunningRow] = []
    for other in sorted(held, key=lambda one: (-above[one], one)):
        may_leave = [row for row in newest_first(held[other]) if _may_leave(row)]
        leaving += may_leave[: max(0, min(int(above[other]), wanted - len(leaving)))]
    return leaving


def leaving_rows(
    workers: Collection[Worker], joiners: Sequence[Request], waiting: Mapping[Job, int], shares: Mapping[Job, float]
) -> list[RunningRow]:
    """Return the background rows that leave for the next job's `joiners`, or else rows that slow small jobs down."""
    leaving: list[RunningRow] = []
    if joiners:
        rows, job = background_rows(workers), job_of(joiners[0])
        places = places_beside_small_jobs(workers, waiting, shares, joiners)
        leaving = rows_making_way(rows, job, rows_wanted(rows, job, waiting[job], shares), shares, places)
    for worker in workers if not leaving else ():
        leaving += rows_above(worker, rows_beside_small_jobs(worker, waiting, shares), shares)
    return leaving


def rows_beside_small_jobs(
    worker: Worker, waiting: Mapping[Job, int], shares: Mapping[Job, float], joiners: Sequence[Request] = ()
) -> dict[Job, int]:
    """Return, for each small job, the most rows of the worker that keep its iterations short.

    A job is small if its rows and `waiting` lines together are fewer than its share of all rows and lines. Running rows
    alone do not decide it, because they change with the limit. A job does not limit its own `joiners`.
    """
    held = _by_job(background_rows([worker]))
    lines = {job: len(rows) + waiting.get(job, 0) for job, rows in held.items()}
    total = sum(map(len, held.values())) + sum(waiting.values())
    joining = {job_of(request) for request in joiners}
    limits = {}
    for job, count in lines.items():
        if count < shares[job] * total and joining != {job}:
            others = [row for other, some in held.items() if other != job for row in some]
            most = _most_others(
                worker, [*held[job], *others_rows([worker])], others, joiners, waiting.get(job, 0), shares[job]
            )
            limits[job] = len(worker.rows) - len(others) + most
    return limits


def places_beside_small_jobs(
    workers: Iterable[Worker], waiting: Mapping[Job, int], shares: Mapping[Job, float], joiners: Sequence[Request]
) -> Mapping[Job, int]:
    """Return, for each small job, how many more rows of others may join beside it.

    At most this many rows of the small job leave for the joiners, because further joiners would have to leave again.
    """
    places: Counter[Job] = Counter()
    for worker in workers:
        for job, most in rows_beside_small_jobs(worker, waiting, shares, joiners).items():
            places[job] += max(0, most - len(worker.rows))
    return places


def limited_beside_small_jobs(
    workers: Iterable[Worker], waiting: Mapping[Job, int], shares: Mapping[Job, float], joiners: Sequence[Request]
) -> list[Worker]:
    """Return the workers, with a limit of rows if more rows would slow a small job down too much.

    The limit is computed with the joiners' rows. Otherwise long rows that left for a small job would join again at
    once, because more rows are allowed beside short rows.
    """
    limited = []
    for worker in workers:
        limits = rows_beside_small_jobs(worker, waiting, shares, joiners)
        if limits:
            most = min(limits.values())
            worker = replace(worker, memory=replace(worker.memory, max_rows=min(most, worker.memory.most_rows)))
        limited.append(worker)
    return limited


def limiting_jobs(limited: Collection[Worker], waiting: Mapping[Job, int], shares: Mapping[Job, float]) -> list[Job]:
    """Return the small jobs beside which no further row may join any of these workers."""
    if any(len(worker.rows) < worker.memory.most_rows for worker in limited):
        return []
    return [job for worker in limited for job in rows_beside_small_jobs(worker, waiting, shares)]


def rows_above(worker: Worker, limits: Mapping[Job, int], shares: Mapping[Job, float]) -> list[RunningRow]:
    """Return the rows that leave so that the worker has no more rows than the limits of its small jobs allow.

    These are the newest rows of the largest of the other jobs.
    """
    if not limits:
        return []
    held = _by_job(background_rows([worker]))
    job, most = min(limits.items(), key=lambda limit: (limit[1], limit[0]))
    largest = max(held.keys() - {job}, key=lambda other: (len(held[other]) / shares[other], other), default=job)
    may_leave = [row for row in newest_first(held[largest]) if _may_leave(row)]
    return may_leave[: max(0, len(worker.rows) - most)]


def is_prefilling(worker: Worker) -> bool:
    """Return whether the worker has prefills of at least `JOIN_S` ahead, of background rows without a new token."""
    joined = [row.request for row in background_rows([worker]) if row.generated <= row.request.generated]
    if not joined:
        return False
    return len(joined) * linearized(worker.costs).prefill_s(1, typical_row(joined).length) >= JOIN_S


def joined_at(workers: Iterable[Worker], now: float) -> float | None:
    """Return when more background rows may join a worker that is prefilling, or None if no worker is."""
    return now + ASKED_AGAIN_S if any(map(is_prefilling, workers)) else None


def background_rows(workers: Iterable[Worker]) -> list[RunningRow]:
    """Return the rows of these workers that are in the background."""
    # `background`, but in half of the time: each decision looks at all rows of the fleet.
    return [row for worker in workers for row in worker.rows if row.request.tier in BACKGROUND_TIERS]


def _by_job(rows: Iterable[RunningRow]) -> dict[Job, list[RunningRow]]:
    """Return the background rows by their jobs."""
    held: defaultdict[Job, list[RunningRow]] = defaultdict(list)
    for row in rows:
        held[job_of(row.request)].append(row)
    return held


def _most_others(
    worker: Worker,
    alone: Sequence[RunningRow],
    others: Sequence[RunningRow],
    joiners: Sequence[Request],
    waiting: int,
    share: float,
) -> int:
    """Return the most rows of other jobs, at least one, beside which a small job does not run too slowly.

    With that many, an iteration takes at most `OF_ITERATIONS` / share times as long as with the rows `alone` and
    `waiting` more. If there are `joiners`, the rows of other jobs count as joiners, each with its prefill. The prefills
    of `others` are over, so more of them may stay than could join.
    """
    joining = [RunningRow(request, request.generated, 0.0) for request in joiners]
    if not others and not joining:
        return worker.memory.most_rows
    count, read = len(alone) + waiting, _read_length(worker, [*alone, *others, *joining])
    curves = linearized(worker.costs)
    longest_s = curves.decode_step_s(count, _read_length(worker, alone)) * OF_ITERATIONS / share
    beside_s = curves.decode_step_s(count, read)
    row_s = curves.decode_step_s(count + 1, read) - beside_s
    if joiners:
        typical = typical_row(joiners)
        row_s += curves.prefill_s(1, typical.length) / typical.remaining
    return max(1, int((longest_s - beside_s) / row_s)) if row_s > 0 else worker.memory.most_rows


def _read_length(worker: Worker, rows: Sequence[RunningRow]) -> float:
    """Return the cached tokens that an iteration reads for each row: the longest row's, or the mean row's if paged."""
    cached = [row.request.length + row.generated for row in rows]
    return sum(cached) / len(cached) if worker.memory.paged else max(cached)


def newest_first(rows: Iterable[RunningRow]) -> list[RunningRow]:
    """Return these rows in the order in which they leave.

    Rows that never left come first, then rows that have generated enough since they left, then the other rows; in each
    of these groups the row that joined last comes first.
    """
    return sorted(
        rows,
        key=lambda row: (_left_lately(row), row.request.generated > 0, -row.started_at, row.generated, row.request.id),
    )


def _may_leave(row: RunningRow) -> bool:
    return row.generated > row.request.generated and not _left_lately(row)


def _left_lately(row: RunningRow) -> bool:
    return row.request.generated > 0 and row.generated - row.request.generated < PROGRESS_TOKENS

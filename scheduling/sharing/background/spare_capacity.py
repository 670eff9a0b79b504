"""Serves background requests, the lines of bulk jobs, with the capacity that others leave, if rows join and leave.

Other requests go first: they are assigned as if no background row ran, and background rows in their way are parked
(`parking`). While others come, background requests have the workers that others can spare (`background_part`).

Tenants and their jobs take turns (`background_queue`). The policy is fed a few requests at a time, and a job that comes
while other jobs fill the memory gets its share of the rows at once: rows of the other jobs leave and wait again with
what they generated (`row_shares`).

Starvation: background requests go ahead as their deadline nears (`deadlines`); those without one wait for all others.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from scheduling.policy import Assignment, Policy, Worker
from scheduling.request import Job, Request, job_of
from scheduling.sharing.background.background_last import BackgroundLast
from scheduling.sharing.background.background_part import BACKGROUND_SHARE, NO_PART, BackgroundPart, ChangingPart
from scheduling.sharing.background.parking import park, with_these, without_background
from scheduling.sharing.background.row_shares import (
    background_rows,
    is_prefilling,
    joined_at,
    leaving_rows,
    limited_beside_small_jobs,
    limiting_jobs,
    rows_wanted,
    shares_of,
)

# One decision of the policy sees this many background requests. They come in the order in which they should be served,
# which a larger number weakens: a simulated job of 1,600 lines takes 56 s with 16 and 69 s with 256 under `fusion`.
FED_AT_ONCE = 16


class SpareCapacity(BackgroundLast):
    """Two continuous policies of one kind: the background's fills the capacity that the policy of others leaves."""

    def __init__(self, make_policy: Callable[[], Policy], share: float = BACKGROUND_SHARE) -> None:
        """Make both policies; BACKGROUND_SHARE explains `share`."""
        super().__init__(make_policy)
        self._part = ChangingPart(share)
        self._leaving: set[str] = set()  # ids of rows that were told to leave and still run
        self._joined_at: float | None = None  # when prefills that keep other rows from joining may be over

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        if not request.background:
            self._part.others_came(now)
        super().add(request, now)

    def _let_wait(self, request: Request) -> None:
        if not self._background.queue.has_job(job_of(request)):
            self._background.withdraw()  # it may be this job's turn
        super()._let_wait(request)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Assign the others' requests, then background requests with the capacity that is left."""
        self._costs = workers[0].costs if workers else self._costs
        feed = self._background
        feed.follow(workers)
        self._leaving &= {row.request.id for row in feed.rows}
        self._follow_deadlines(workers, now)
        waiting = feed.next_requests(FED_AT_ONCE)
        likely = waiting or [row.request for row in feed.rows]
        part = self._part.at(workers, likely, now) if likely else NO_PART
        assignments = self._assign_others(workers, part, now) if likely else self._others.assign(workers, now)
        self._went_ahead(assignments)
        self._joined_at = None
        if not waiting:
            return assignments
        left = with_these(workers, assignments, now)
        return [*assignments, *self._assign_background(left, part, now)]

    def _assign_others(self, workers: Sequence[Worker], part: BackgroundPart, now: float) -> list[Assignment]:
        """Assign others' requests as if all background rows were parked, and park the rows that are in their way.

        The requests go to workers that the background does not have for itself, or if they do not fit there, to any.
        """
        # Workers with the fewest background rows come first, because a policy takes the first of equally good workers.
        workers = sorted(workers, key=lambda worker: sum(row.request.background for row in worker.rows))
        every = {worker.name: without_background(worker) for worker in workers}
        theirs = [worker for name, worker in every.items() if name not in part.own]
        assignments = self._others.assign(theirs, now)
        # A policy that names an instant holds joiners back until others can join together with them.
        if part.own and len(self._others) and self._others.wake_at(now) is None:
            every = with_these(every.values(), assignments, now)
            assignments = [*assignments, *self._others.assign(list(every.values()), now)]
        parking = park(workers, assignments, part.filled_bytes, self._leaving)
        self._leaving.update(one for assignment in parking for one in assignment.preempts)
        return parking

    def _assign_background(self, left: dict[str, Worker], part: BackgroundPart, now: float) -> Iterator[Assignment]:
        """Feed the policy until it leaves some requests waiting, because the workers are full."""
        policy = self._background.policy
        while parts := _parts(left.values(), part.filled_bytes):
            may_take = self._fed_for(parts, now)
            assignments = policy.assign(may_take, now)
            # Without this, a request larger than the part of an empty worker would wait for ever.
            empty = [left[one.name] for one in may_take if one.idle]
            if not assignments and empty:
                assignments = policy.assign(empty, now)
            for assignment in assignments:
                left[assignment.worker] = left[assignment.worker].given(assignment, now)
                self._assigned_background(assignment)
                yield assignment
            if not assignments or len(policy):
                break
        self._joined_at = joined_at(left.values(), now)
        if not len(self._others):
            yield from self._make_way(list(left.values()), now)

    def _fed_for(self, parts: list[Worker], now: float) -> list[Worker]:
        """Feed the policy; return the workers, limited to the rows that they may have if the fed requests join.

        If these requests may not join, because they would slow a small job down, that job's waiting lines are fed.
        """
        self._feed(self._background.queue.next_job(), now)
        may_take = self._limited(parts)
        limiting = limiting_jobs(may_take, *self._waiting_and_shares()) if may_take is not parts else ()
        if small := [job for job in limiting if self._background.queue.has_job(job)]:
            self._background.withdraw()
            self._feed(small[0], now)
            may_take = self._limited(parts)
        return may_take

    def _limited(self, parts: list[Worker]) -> list[Worker]:
        feed = self._background
        if len(feed.running | feed.shown_of_jobs().keys()) < 2:
            return parts
        return limited_beside_small_jobs(parts, *self._waiting_and_shares(), list(feed.shown.values()))

    def _feed(self, job: Job | None, now: float) -> None:
        """Show the policy requests of this job, unless another job's are shown: it might not keep the jobs' order."""
        feed = self._background
        if job is not None and not feed.shown_of_jobs().keys() - {job}:
            feed.show(feed.queue.take(job, FED_AT_ONCE - len(feed.shown)), now)

    def _make_way(self, workers: Collection[Worker], now: float) -> Iterator[Assignment]:
        """Let rows leave for a waiting job that has far fewer rows than its share, or to keep a small job fast."""
        feed, (waiting, shares) = self._background, self._waiting_and_shares()
        # A policy that names an instant holds joiners back until others can join together with them.
        if len(shares) < 2 or self._leaving or feed.policy.wake_at(now) is not None:
            return
        job = feed.queue.next_job(waiting)
        joiners = [request for request in feed.next_requests(FED_AT_ONCE) if job_of(request) == job]
        leaving = leaving_rows(workers, joiners, waiting, shares)
        if leaving or (job is not None and rows_wanted(background_rows(workers), job, waiting[job], shares)):
            feed.withdraw()  # rows leave for this job, so it must be fed first
        self._leaving = {row.request.id for row in leaving}
        for worker in workers:
            if ids := tuple(row.request.id for row in worker.rows if row.request.id in self._leaving):
                yield Assignment(worker.name, (), joins=True, preempts=ids)

    def _waiting_and_shares(self) -> tuple[Mapping[Job, int], dict[Job, float]]:
        """Return the number of waiting requests of each job that has some, and the shares of all jobs."""
        feed = self._background
        waiting = feed.shown_of_jobs()
        waiting.update({job: feed.queue.size_of(job) for job in feed.queue.jobs})
        return waiting, shares_of(feed.running | set(waiting), feed.queue.tenants.weight_of)

    def wake_at(self, now: float) -> float | None:
        """Return when a policy wants to be asked again, more rows may join, or a deadline may change the order."""
        instants = (super().wake_at(now), self._joined_at)
        return min((at for at in instants if at is not None), default=None)


def _parts(workers: Iterable[Worker], filled_bytes: Mapping[str, int]) -> list[Worker]:
    """Return the workers for background requests, each with the memory that background rows may fill."""
    return [
        replace(worker, memory=replace(worker.memory, theta_bytes=filled_bytes[worker.name]))
        for worker in workers
        if worker.name in filled_bytes and not is_prefilling(worker)
    ]

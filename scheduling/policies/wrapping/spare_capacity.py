"""Serves background requests, the lines of bulk jobs, with the capacity left by others, under any policy.

Others go first. Where rows join running batches, they are assigned as if no background row ran, and the background rows
in their way are parked (`parking`). While others come, background requests have the workers that these can spare
(`background_part`). Where batches run to completion, background batches get the workers that are then still idle.

Background requests go round by tenant and by job (`background_queue`). Where rows join running batches, the policy is
fed a few at a time, and a job that comes while others fill the memory gets its share of the rows at once: rows of the
others leave and wait again with what they generated. Where batches run to completion, each job has a policy of its own
that sees its lines thousands at a time, so that batches are made from the whole job.

Starvation: background requests go ahead as their deadline nears (`deadlines`). Without one they wait for all others.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from scheduling.costs import ServingTime
from scheduling.policies.wrapping.background_part import BACKGROUND_SHARE, NO_PART, BackgroundPart, ChangingPart
from scheduling.policies.wrapping.background_queue import BackgroundQueue, Job, job_of
from scheduling.policies.wrapping.deadlines import Deadlines
from scheduling.policies.wrapping.parking import park, with_these, without_background
from scheduling.policies.wrapping.row_shares import (
    background_rows,
    is_prefilling,
    joined_at,
    leaving_rows,
    limited_beside_small_jobs,
    limiting_jobs,
    rows_wanted,
    shares_of,
)
from scheduling.policies.wrapping.wrapping_policy import WrappingPolicy
from scheduling.policy import Assignment, Policy, RunningRow, WaitingBatch, Worker, waiting_batch
from scheduling.request import BACKGROUND_PRIORITY, Request

# Background requests that one decision of the policy sees where rows join. They come in the order in which they should
# be served, so that more lose: a simulated job of 1,600 lines takes 56 s with 16 and 69 s with 256 under `fusion`.
FED_AT_ONCE = 16
# Lines of all jobs that their policies see where batches run to completion, and the least of one job. A job is shown
# more once half of these are gone. They bound the time of a decision, however many lines wait. Not tuned.
SEEN_AT_ONCE, SEEN_OF_A_JOB = 16_384, 256


class SpareCapacity(WrappingPolicy):
    """Two policies of the same kind: one for other requests, and one for background requests in the spare capacity."""

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        share: float = BACKGROUND_SHARE,
        make_background: Callable[[], Policy] | None = None,
    ) -> None:
        """Make both policies, by default in the same way; `share` is explained at BACKGROUND_SHARE."""
        self._part = ChangingPart(share)
        self._others, self._background = make_policy(), (make_background or make_policy)()
        self.mode = self._others.mode
        self._queue = BackgroundQueue()  # background requests that the policy has not seen yet
        self._fed: dict[str, Request] = {}  # those that it has seen and not assigned
        self._seen: Counter[Job] = Counter()  # the number of these by job
        self._rows: list[RunningRow] = []  # background rows at the last decision
        self._running: set[Job] = set()  # their jobs, and those that were assigned since
        self._leaving: set[str] = set()  # ids of rows that were told to leave and still run
        self._deadlines = Deadlines()
        self._ahead: dict[str, Request] = {}  # background requests that wait among the others, as they came
        self._costs: ServingTime | None = None
        self._joined_at: float | None = None  # when rows that keep others from joining may have been prefilled

    def __len__(self) -> int:
        return super().__len__() + len(self._queue)

    def _inner(self) -> Iterable[Policy]:
        return self._others, self._background

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        if not request.background:
            self._part.others_came(now)
            self._others.add(request, now)
            return
        if self._deadlines.add(request, now):
            self._go_ahead(request, now)
            return
        if self.mode == "continuous" and not self._queue.has_job(job_of(request)):
            self._withdraw()  # it may be the turn of this job
        self._begin(job_of(request))
        self._queue.add(request)

    def _begin(self, job: Job) -> None:
        if not self._queue.has_job(job):
            self._queue.begin(job, self._rows, self._running | self._seen.keys())

    def _withdraw(self) -> None:
        """Take back the requests that the policy has seen and not assigned."""
        for request in list(self._fed.values()):
            self._forget(request.id)
            self._background.discard(request.id)
            self._queue.put_back(request)

    def _forget(self, request_id: str) -> Request | None:
        """Count a request as no longer seen by the policy, and return it; None if it is not."""
        request = self._fed.pop(request_id, None)
        if request is not None:
            job = job_of(request)
            self._seen[job] -= 1
            if not self._seen[job]:
                del self._seen[job]
        return request

    def set_rank_correlation(self, tau: float | None) -> None:
        """Order background requests by their predictions only while these rank answers."""
        self._queue.set_rank_correlation(tau)
        super().set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet and the spare capacity among tenants by these weights."""
        self._queue.tenants.set_weights(weights)
        super().set_weights(weights)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        request = self._forget(request_id) or self._queue.discard(request_id) or self._ahead.pop(request_id, None)
        if request is not None:
            self._deadlines.remove(request)
        return super().discard(request_id) or request is not None

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Assign the others' requests, then background requests with the capacity that is left."""
        self._costs = workers[0].costs if workers else self._costs
        self._rows = background_rows(workers)
        self._running = {job_of(row.request) for row in self._rows}
        self._leaving &= {row.request.id for row in self._rows}
        self._follow_deadlines(workers, now)
        waiting = [*self._fed.values(), *islice(self._queue, FED_AT_ONCE)]
        likely = waiting or [row.request for row in self._rows]
        if self.mode != "continuous" or not likely:
            assignments, part = self._others.assign(workers, now), NO_PART
        else:
            part = self._part.at(workers, likely, now)
            assignments = self._assign_others(workers, part, now)
        for request in chain.from_iterable(assignment.requests for assignment in assignments):
            if (came := self._ahead.pop(request.id, None)) is not None:
                self._deadlines.remove(came)
        self._joined_at = None
        if not waiting:
            return assignments
        left = with_these(workers, assignments, now)
        return [*assignments, *self._assign_background(left, part, now)]

    def _assign_others(self, workers: Sequence[Worker], part: BackgroundPart, now: float) -> list[Assignment]:
        """Assign the others' requests as if all background rows were parked, and park those that are in their way.

        They go to the workers that the background does not have for itself, or if they do not fit there, to any.
        """
        # those with the fewest background rows come first, since a policy takes the first of equally good ones
        workers = sorted(workers, key=lambda worker: sum(row.request.background for row in worker.rows))
        every = {worker.name: without_background(worker) for worker in workers}
        theirs = [worker for name, worker in every.items() if name not in part.own]
        assignments = self._others.assign(theirs, now)
        # a policy that names an instant holds joiners back until others can join together with them
        if part.own and len(self._others) and self._others.wake_at(now) is None:
            every = with_these(every.values(), assignments, now)
            assignments = [*assignments, *self._others.assign(list(every.values()), now)]
        parking = park(workers, assignments, part.filled_bytes, self._leaving)
        self._leaving.update(one for assignment in parking for one in assignment.preempts)
        return parking

    def _assign_background(self, left: dict[str, Worker], part: BackgroundPart, now: float) -> Iterator[Assignment]:
        """Feed the policy until it leaves some requests waiting: then the workers are full."""
        while parts := self._parts(left.values(), part.filled_bytes):
            may_take = self._fed_for(parts, now)
            assignments = self._background.assign(may_take, now)
            # a request larger than the part of an empty worker would wait for ever
            empty = [left[one.name] for one in may_take if one.idle] if self.mode == "continuous" else []
            if not assignments and empty:
                assignments = self._background.assign(empty, now)
            for assignment in assignments:
                left[assignment.worker] = left[assignment.worker].given(assignment, now)
                for request in assignment.requests:
                    self._deadlines.remove(self._forget(request.id) or request)
                    self._running.add(job_of(request))
                yield assignment
            if not assignments or len(self._background):
                break
        self._joined_at = joined_at(left.values(), now)
        if self.mode == "continuous" and not len(self._others):
            yield from self._make_way(list(left.values()), now)

    def _parts(self, workers: Iterable[Worker], filled_bytes: Mapping[str, int]) -> list[Worker]:
        """Return the workers for background requests, each with the memory that these may fill."""
        if self.mode != "continuous":
            return list(workers)  # none of these policies gives a busy worker more
        return [
            replace(worker, memory=replace(worker.memory, theta_bytes=filled_bytes[worker.name]))
            for worker in workers
            if worker.name in filled_bytes and not is_prefilling(worker)
        ]

    def _fed_for(self, parts: list[Worker], now: float) -> list[Worker]:
        """Feed the policy; return the workers, each with the most rows that it may have if the fed requests join.

        If these requests may not join, because they would slow a small job down, its own waiting lines are fed first.
        """
        self._feed(now)
        may_take = self._limited(parts)
        limiting = limiting_jobs(may_take, *self._waiting_and_shares()) if may_take is not parts else ()
        if small := [job for job in limiting if self._queue.has_job(job)]:
            self._withdraw()
            self._feed(now, small)
            may_take = self._limited(parts)
        return may_take

    def _limited(self, parts: list[Worker]) -> list[Worker]:
        if self.mode != "continuous" or len(self._running | self._seen.keys()) < 2:
            return parts
        return limited_beside_small_jobs(parts, *self._waiting_and_shares(), list(self._fed.values()))

    def _feed(self, now: float, first: Sequence[Job] = ()) -> None:
        """Show the policy the next requests: some of one job, or where batches run to completion many of each job.

        Where rows join, the policy sees one job at a time, since it may order requests otherwise.
        """
        taken: Sequence[Request] = ()
        jobs = self._queue.jobs
        if self.mode == "continuous":
            job = first[0] if first else self._queue.next_job()
            if job is not None and not self._seen.keys() - {job}:
                taken = self._queue.take(job, FED_AT_ONCE - self._seen[job])
        elif jobs:
            most = max(SEEN_OF_A_JOB, SEEN_AT_ONCE // len(jobs))
            due = (job for job in jobs if 2 * self._seen[job] < most)
            taken = [one for job in due for one in self._queue.take(job, most - self._seen[job])]
        for request in taken:
            self._fed[request.id] = request
            self._seen[job_of(request)] += 1
            self._background.add(request, now)

    def _make_way(self, workers: Collection[Worker], now: float) -> Iterator[Assignment]:
        """Let rows leave for a waiting job that has far fewer rows than its share, or to keep a small job fast."""
        waiting, shares = self._waiting_and_shares()
        # a policy that names an instant holds joiners back until others can join together with them
        if len(shares) < 2 or self._leaving or self._background.wake_at(now) is not None:
            return
        job = self._queue.next_job(waiting)
        every = chain(self._fed.values(), islice(self._queue, FED_AT_ONCE))
        joiners = [request for request in every if job_of(request) == job]
        leaving = leaving_rows(workers, joiners, waiting, shares)
        if leaving or (job is not None and rows_wanted(background_rows(workers), job, waiting[job], shares)):
            self._withdraw()  # they leave for this job, so it goes first
        self._leaving = {row.request.id for row in leaving}
        for worker in workers:
            if ids := tuple(row.request.id for row in worker.rows if row.request.id in self._leaving):
                yield Assignment(worker.name, (), joins=True, preempts=ids)

    def _waiting_and_shares(self) -> tuple[dict[Job, int], dict[Job, float]]:
        """Return the number of waiting requests of each job that has any, and the shares of all jobs."""
        waiting = {job: self._seen[job] + self._queue.size_of(job) for job in {*self._queue.jobs, *self._seen}}
        return waiting, shares_of(self._running | set(waiting), self._queue.tenants.weight_of)

    def _follow_deadlines(self, workers: Sequence[Worker], now: float) -> None:
        """Let jobs wait among other requests while their deadline is near and can be met; set the jobs' weights."""
        for judged in self._deadlines.judge(workers, now):
            if judged.job[1]:  # requests that belong to no job have no weight of their own among each other
                self._queue.set_weight(judged.job, judged.weight)
            if judged.ahead and not judged.was_ahead:
                for request in filter(judged.is_of, [*self._queue.waiting_of(judged.job), *self._fed.values()]):
                    self._queue.discard(request.id)
                    if self._forget(request.id) is not None:
                        self._background.discard(request.id)
                    self._go_ahead(request, now)
            elif judged.was_ahead and not judged.ahead:
                for request in list(filter(judged.is_of, self._ahead.values())):
                    del self._ahead[request.id]
                    self._others.discard(request.id)
                    self._begin(judged.job)
                    self._queue.add(request)

    def _go_ahead(self, request: Request, now: float) -> None:
        """Let a background request wait among the others."""
        self._ahead[request.id] = request
        self._others.add(replace(request, priority=request.priority - BACKGROUND_PRIORITY), now)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy that made it."""
        if any(request.background for request in assignment.requests):
            self._background.out_of_memory(assignment, now)
            for request in assignment.requests:
                self._deadlines.add(request, now)
                self._begin(job_of(request))
                self._fed[request.id] = request
                self._seen[job_of(request)] += 1
        else:
            self._others.out_of_memory(assignment, now)

    def wake_at(self, now: float) -> float | None:
        """Return when a policy wants to be asked again, more rows may join, or a deadline may change the order."""
        instants = (super().wake_at(now), self._deadlines.wake_at(now), self._joined_at)
        return min((at for at in instants if at is not None), default=None)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches: other requests first, then background requests."""
        behind = (waiting_batch((request,), self._costs, now) for request in self._queue)
        return chain(self._others.waiting(now), self._background.waiting(now), behind)

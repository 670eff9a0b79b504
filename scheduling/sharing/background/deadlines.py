"""Decides which background requests are served like other requests, because their deadline nears.

The requests of a job whose deadlines fall in the same second are judged together. Their urgency is the share of the
fleet that they need from now on to be on time: the seconds in which the whole fleet would serve them, divided by the
seconds that are left. As urgency grows, the job first gets a larger share of its tenant's background work; then its
requests are served like others. Above 1 the deadline is lost: the job loses these advantages, because some of its lines
would be late in any case. It goes on in the background, and regains the advantages if the fleet grows.
"""

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from scheduling.policy import Worker
from scheduling.request import Job, Request, job_of
from scheduling.sharing.background.background_part import REFILL_S, TypicalRow

# From this urgency on, a job's weight grows in proportion to the urgency: it is four times as large at AHEAD_FROM. Not
# tuned.
RAMP_FROM = 1 / 16
# From this urgency on, a job's requests are served like others. At a quarter, a job is on time beside others that use
# up to three quarters of the fleet; with a larger value it disturbs them for a shorter time. Not tuned.
AHEAD_FROM = 0.25
# The last answer should be there these seconds before the deadline, at most half of the time that is left. They allow
# for a decision, a message, and predictions that were too short. Not tuned.
MARGIN_S = 5.0
LEAST_PAUSE_S = 1.0  # the least pause between two judgements of a job; pauses are this short only before a change
# Bounds of one decision; what is left is judged and moved SOON_S later. Without them 100,000 requests whose deadlines
# all differ stopped a planner for at least 88 s. Not tuned.
MOST_JUDGED, MOST_MOVED, SOON_S = 64, 2048, 0.1


class DueJob(NamedTuple):
    """The requests of a job whose deadlines lie less than a second after `deadline_at`."""

    job: Job
    deadline_at: int


@dataclass(frozen=True, slots=True)
class Work:
    """The sums over some waiting requests: their number, tokens to prefill and to generate, and the longest answer."""

    requests: int = 0
    prefill: int = 0
    remaining: int = 0
    longest: int = 0

    @property
    def tokens(self) -> int:
        """Return the tokens of service: those to prefill and those to generate."""
        return self.prefill + self.remaining

    @property
    def typical_row(self) -> TypicalRow:
        """Return the mean prompt and remaining tokens of the requests, of which there must be at least one."""
        return TypicalRow(max(1, self.prefill // self.requests), max(1, self.remaining // self.requests))

    def scaled(self, times: float) -> "Work":
        """Return `times` times the work; the longest answer stays the same."""
        return Work(
            math.ceil(times * self.requests),
            math.ceil(times * self.prefill),
            math.ceil(times * self.remaining),
            self.longest,
        )

    def together(self, other: "Work") -> "Work":
        """Return the sums over both works; the longest answer is that of `self`."""
        return Work(
            self.requests + other.requests, self.prefill + other.prefill, self.remaining + other.remaining, self.longest
        )

    def plus(self, request: Request, times: int = 1) -> "Work":
        """Return the sums with this request added, or with `times` -1 subtracted; the longest answer never shrinks."""
        longest = max(self.longest, request.remaining) if times > 0 else self.longest
        return Work(
            self.requests + times,
            self.prefill + times * request.prefill,
            self.remaining + times * request.remaining,
            longest,
        )


def needed_s(work: Work, workers: Collection[Worker]) -> float:
    """Return the seconds in which these workers would serve this work and nothing else, or infinity without workers.

    The workers are assumed to be full of typical rows all the time, and then to serve the longest answer to its end.
    """
    if not work.requests:
        return 0.0
    row = work.typical_row
    sizes = ((worker, most_rows(worker, row, work.requests)) for worker in workers)
    longest_s = (worker.costs.serve_s(size, row.length, work.longest) for worker, size in sizes)
    return used_s(work, workers) / max(1, len(workers)) + min(longest_s, default=math.inf)


def used_s(work: Work, workers: Collection[Worker]) -> float:
    """Return the worker seconds that this work takes if the workers are full of it, or infinity without workers."""
    row = work.typical_row
    rates = sum(rows_per_s(worker, row, most_rows(worker, row, work.requests)) for worker in workers)
    return len(workers) * work.requests / rates if rates else math.inf


def most_rows(worker: Worker, row: TypicalRow, rows: int) -> int:
    """Return how many of `rows` rows like `row` the worker runs at once, at least one."""
    return max(1, min(worker.memory.fixed_batch_size(row.length, row.remaining), rows))


def rows_per_s(worker: Worker, row: TypicalRow, size: int) -> float:
    """Return how many rows like `row` the worker serves in a second, while it always runs `size` of them."""
    return size / (worker.costs.serve_s(size, row.length, row.remaining) + REFILL_S)


def urgency(needed_s: float, left_s: float) -> float:
    """Return the share of the fleet that work of `needed_s` seconds needs to be done within `left_s` seconds."""
    usable_s = left_s - min(MARGIN_S, left_s / 2)
    return needed_s / usable_s if usable_s > 0 else math.inf


def boost(urgency: float) -> float:
    """Return the factor by which this urgency raises a job's weight."""
    return max(1.0, urgency / RAMP_FROM) if urgency <= 1 else 1.0


def goes_ahead(urgency: float) -> bool:
    """Return whether requests of this urgency are served like other requests."""
    return AHEAD_FROM <= urgency <= 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """The consequences of a job's deadline now; `ahead` says whether its requests are served like other requests."""

    due: DueJob
    weight: float
    ahead: bool
    moved: Sequence[Request]  # the requests for which `ahead` has changed


def _nobody() -> dict[bool, dict[str, Request]]:
    return {True: {}, False: {}}


@dataclass(slots=True)
class _Watched:
    """A job's waiting work, the number of its requests at the last judgement, and when the next judgement is due."""

    waiting: dict[bool, dict[str, Request]] = field(default_factory=_nobody)  # True: those served like other requests
    work: Work = Work()
    judged_requests: int = 0
    judge_at: float = -math.inf
    ahead: bool = False


class Deadlines:
    """The waiting work of jobs with a deadline, and when each is judged next."""

    def __init__(self) -> None:
        self._jobs: dict[DueJob, _Watched] = {}
        self._due: list[tuple[float, DueJob]] = []  # only the entry at a job's `judge_at` is valid

    def add(self, request: Request, now: float) -> bool:
        """Count a waiting background request if it has a deadline; return whether it is served like other requests."""
        if request.deadline_at is None:
            return False
        due = _due(request, request.deadline_at)
        watched = self._jobs.setdefault(due, _Watched())
        watched.work = watched.work.plus(request)
        watched.waiting[watched.ahead][request.id] = request
        if watched.work.requests >= 2 * watched.judged_requests and watched.judge_at != now:
            self._judge_later(due, now)
        return watched.ahead

    def remove(self, request: Request) -> None:
        """Stop counting a request, which runs or is gone."""
        if request.deadline_at is not None:
            watched = self._jobs.get(_due(request, request.deadline_at))
            if watched is not None and any(some.pop(request.id, None) for some in watched.waiting.values()):
                watched.work = watched.work.plus(request, -1)

    def judge(self, workers: Sequence[Worker], now: float) -> Iterator[Judgement]:
        """Yield a judgement of each job whose judgement is due, within MOST_JUDGED and MOST_MOVED."""
        judged = moves = 0
        while self._due and self._due[0][0] <= now and judged < MOST_JUDGED and moves < MOST_MOVED:
            at, due = heapq.heappop(self._due)
            watched, left_s = self._jobs.get(due), due.deadline_at - now
            if watched is None or watched.judge_at != at:
                continue
            share, next_at = 0.0, math.inf
            if left_s > 0 and any(watched.waiting.values()):
                needed = needed_s(watched.work, workers)
                share, next_at = urgency(needed, left_s), now + _pause_s(needed, left_s)
                watched.judged_requests = watched.work.requests
            ahead = watched.ahead = goes_ahead(share)
            moved = list(islice(watched.waiting[not ahead].values(), MOST_MOVED - moves))
            for request in moved:
                watched.waiting[ahead][request.id] = watched.waiting[not ahead].pop(request.id)
            judged, moves = judged + 1, moves + len(moved)
            if moves == MOST_MOVED:
                self._judge_later(due, now)
            elif next_at < math.inf:
                self._judge_later(due, next_at)
            else:
                del self._jobs[due]
            yield Judgement(due, boost(share), ahead, moved)

    def _judge_later(self, due: DueJob, at: float) -> None:
        self._jobs[due].judge_at = at
        heapq.heappush(self._due, (at, due))

    def wake_at(self, now: float) -> float | None:
        """Return when the next judgement is due."""
        if not self._due:
            return None
        return max(self._due[0][0], now + SOON_S)


def _due(request: Request, deadline_at: float) -> DueJob:
    return DueJob(job_of(request), math.floor(deadline_at))


def _pause_s(needed_s: float, left_s: float) -> float:
    """Return the seconds until the next judgement: half of the time until a judgement changes if nothing is served.

    It is only half of that time because further lines of the job may come.
    """
    changes_s = (left_s - MARGIN_S - needed_s / share for share in (RAMP_FROM, AHEAD_FROM, 1.0))
    return max(LEAST_PAUSE_S, min((seconds for seconds in changes_s if seconds > 0), default=left_s) / 2)

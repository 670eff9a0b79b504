"""Decides which background requests are served like other requests because their deadline nears.

The requests of a job with the same deadline are judged together. Their urgency is the share of the fleet that they need
from now on to be on time: the seconds in which the whole fleet would serve them, over the seconds that are left. As it
grows, the job first gets a larger share of its tenant's background work; then its requests are served like others.
Above 1 the deadline is lost: the job loses these advantages, because some of its lines would be late in any case. It
goes on in the background, and gets them again if the fleet grows.
"""

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from scheduling.policies.wrapping.background_part import REFILL_S, TypicalRow
from scheduling.policies.wrapping.background_queue import Job, job_of
from scheduling.policy import Worker
from scheduling.request import Request

# The urgency from which a job's weight grows, in proportion to the urgency: it has four times its weight at AHEAD_FROM.
# Not tuned.
RAMP_FROM = 1 / 16
# The urgency from which a job's requests are served like others. At a quarter, a job is on time beside others that use
# up to three quarters of the fleet; a larger value lets it disturb them for a shorter time. Not tuned.
AHEAD_FROM = 0.25
# Seconds before the deadline at which the last answer should be there: a decision, a message, predictions that were too
# short. At most half of the time that is left. Not tuned.
MARGIN_S = 5.0
LEAST_PAUSE_S = 1.0  # the least pause between two judgements of a job; it is this short only shortly before one changes

DueJob = tuple[str, str, float]  # tenant, id of the job, deadline


@dataclass(frozen=True, slots=True)
class Work:
    """The sums over some waiting requests: their number, tokens to prefill and to generate, and the longest answer."""

    requests: int = 0
    prefill: int = 0
    remaining: int = 0
    longest: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of service."""
        return self.prefill + self.remaining

    @property
    def typical_row(self) -> TypicalRow:
        """The mean prompt and remaining tokens of its requests; there must be at least one."""
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
        """Return the sums over both works; the longest answer is that of this one."""
        return Work(
            self.requests + other.requests, self.prefill + other.prefill, self.remaining + other.remaining, self.longest
        )

    def plus(self, request: Request, times: int = 1) -> "Work":
        """Return the sums with this request added, or with `times` -1 taken away; the longest answer stays."""
        longest = max(self.longest, request.remaining) if times > 0 else self.longest
        return Work(
            self.requests + times,
            self.prefill + times * request.prefill,
            self.remaining + times * request.remaining,
            longest,
        )


def needed_s(work: Work, workers: Collection[Worker]) -> float:
    """Return the seconds in which these workers would serve this work and nothing else, or infinity without workers.

    The workers are full of typical rows all the time, and then serve the longest answer to its end.
    """
    if not work.requests:
        return 0.0
    row = work.typical_row
    sizes = ((worker, most_rows(worker, row, work.requests)) for worker in workers)
    longest_s = (worker.costs.serve_s(size, row.length, work.longest) for worker, size in sizes)
    return used_s(work, workers) / max(1, len(workers)) + min(longest_s, default=math.inf)


def used_s(work: Work, workers: Collection[Worker]) -> float:
    """Return the seconds of all these workers together that this work takes if they are full; infinity without any."""
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
    """Return the factor of a job's weight."""
    return max(1.0, urgency / RAMP_FROM) if urgency <= 1 else 1.0


def goes_ahead(urgency: float) -> bool:
    """Return whether requests of this urgency are served like other requests."""
    return AHEAD_FROM <= urgency <= 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """The consequences of a job's deadline now; `ahead`: its requests are served like other requests."""

    job: Job
    deadline_at: float
    weight: float
    ahead: bool
    was_ahead: bool

    def is_of(self, request: Request) -> bool:
        """Return whether it is about this request."""
        return (job_of(request), request.deadline_at) == (self.job, self.deadline_at)


@dataclass(slots=True)
class _Watched:
    """A job's waiting work, how much of it there was at the last judgement, and when the next one is due."""

    work: Work = Work()
    judged_requests: int = 0
    judge_at: float = -math.inf
    ahead: bool = False


class Deadlines:
    """The waiting work of jobs with a deadline, and when each is judged next: a job of any size costs one judgement."""

    def __init__(self) -> None:
        self._jobs: dict[DueJob, _Watched] = {}
        self._due: list[tuple[float, DueJob]] = []  # a job may have several entries; the one at its `judge_at` is valid

    def add(self, request: Request, now: float) -> bool:
        """Count a waiting background request, if it has a deadline; return whether it is served like other requests."""
        if request.deadline_at is None:
            return False
        job = (*job_of(request), request.deadline_at)
        watched = self._jobs.setdefault(job, _Watched())
        watched.work = watched.work.plus(request)
        if watched.work.requests >= 2 * watched.judged_requests and watched.judge_at != now:
            self._judge_later(job, now)
        return watched.ahead

    def remove(self, request: Request) -> None:
        """Count a request no longer, because it runs or is gone."""
        if request.deadline_at is not None:
            watched = self._jobs.get((*job_of(request), request.deadline_at))
            if watched is not None:
                watched.work = watched.work.plus(request, -1)

    def judge(self, workers: Sequence[Worker], now: float) -> Iterator[Judgement]:
        """Yield a judgement of each job that is due."""
        while self._due and self._due[0][0] <= now:
            at, job = heapq.heappop(self._due)
            watched, left_s = self._jobs.get(job), job[2] - now
            if watched is None or watched.judge_at != at:
                continue
            share, was_ahead = 0.0, watched.ahead
            if left_s <= 0 or not watched.work.requests:
                del self._jobs[job]
            else:
                needed = needed_s(watched.work, workers)
                share = urgency(needed, left_s)
                watched.judged_requests = watched.work.requests
                self._judge_later(job, now + _pause_s(needed, left_s))
            watched.ahead = goes_ahead(share)
            yield Judgement(job[:2], job[2], boost(share), watched.ahead, was_ahead)

    def _judge_later(self, job: DueJob, at: float) -> None:
        self._jobs[job].judge_at = at
        heapq.heappush(self._due, (at, job))

    def wake_at(self, now: float) -> float | None:
        """Return when the next job is due."""
        if not self._due:
            return None
        return self._due[0][0] if self._due[0][0] > now else now + LEAST_PAUSE_S


def _pause_s(needed_s: float, left_s: float) -> float:
    """Return the seconds until the next judgement: half of the time until it would change if nothing were served.

    Half, because further lines of the job may come.
    """
    changes_s = (left_s - MARGIN_S - needed_s / share for share in (RAMP_FROM, AHEAD_FROM, 1.0))
    return max(LEAST_PAUSE_S, min((seconds for seconds in changes_s if seconds > 0), default=left_s) / 2)

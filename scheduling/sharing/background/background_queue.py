"""The waiting background requests, in the order in which they get capacity: tenants in turn, then jobs, then lines.

Tenants take turns by their weights, and the jobs of a tenant by theirs, in tokens of service (VTC). The counter of a
new tenant or job begins where the others' counters would be without the tokens that their running rows still have to
generate. So a small job goes first as rows end, however many rows of another job run and wait.

Within a job the longest answers go first, so that the job does not end with a few long rows on an empty fleet (longest
processing time first). Of answers within a factor of two the longest prompts go first, so that rows that run together
are alike, which leaves least padding. While predictions do not rank answers, the shortest prompts go first, whatever is
predicted. No line starves: a line overtakes one that came at most `AGE_S` earlier for each token by which its answer
may be longer, or its prompt shorter; and each job's turn comes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from scheduling.arrival_queue import ArrivalQueue
from scheduling.policy import RunningRow
from scheduling.rank_correlation import RankCorrelation, prediction_weight
from scheduling.request import Job, Request, job_of
from scheduling.virtual_token_counters import VirtualTokenCounters, service_tokens

# These seconds of waiting make up for one token of predicted length. A job's lines come within seconds to minutes, so
# any value far above 1 orders them by length; with 10, none is overtaken by lines some hours younger. Not tuned.
AGE_S = 10.0
LONG_PROMPT = 512  # the tokens of a prompt that is neither short nor long; any typical length works
# A copy of the queue has at most this many requests. Copies are made for forecasts, which simulate at most 400 answers;
# copying a million requests would keep a planner from deciding for nine seconds. Not tuned.
COPIED = 2048


class BackgroundQueue:
    """Waiting background requests by tenant and job, and the service that each tenant and job has had."""

    def __init__(self) -> None:
        self.tenants = VirtualTokenCounters[str]()
        self._jobs: defaultdict[str, VirtualTokenCounters[str]] = defaultdict(VirtualTokenCounters)  # by tenant
        # The waiting requests by tenant and job; only jobs with a waiting request are in it.
        self._lines: defaultdict[str, dict[str, ArrivalQueue]] = defaultdict(dict)
        self._job_of: dict[str, Job] = {}
        self._weights: defaultdict[str, dict[str, float]] = defaultdict(dict)  # the weights of jobs, by tenant
        self._key = longest_first

    def __len__(self) -> int:
        return len(self._job_of)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: the requests that would be taken first, at most `COPIED`."""
        if len(self) <= COPIED:
            return self.__dict__
        lines: defaultdict[str, dict[str, ArrivalQueue]] = defaultdict(dict)
        job_of_line: dict[str, Job] = {}
        for request in islice(self, COPIED):
            tenant, name = job_of_line[request.id] = job_of(request)
            lines[tenant].setdefault(name, ArrivalQueue(self._key)).add(request)
        return self.__dict__ | {"_lines": lines, "_job_of": job_of_line}

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests as they would be taken; the first k take O(k log k). The queue must not change."""
        of_tenants = {
            tenant: self._jobs[tenant].in_turn(
                {job: self._in_order(Job(tenant, job)) for job in of_jobs}, service_tokens
            )
            for tenant, of_jobs in self._lines.items()
        }
        return self.tenants.in_turn(of_tenants, service_tokens)

    def _in_order(self, job: Job) -> Iterator[Request]:
        yield from self._ordered(job)

    def _ordered(self, job: Job) -> ArrivalQueue:
        """Return a job's lines, sorted by the key in force: a new key takes time only for jobs whose turn comes."""
        lines = self._lines[job.tenant][job.id]
        lines.sort_by(self._key)
        return lines

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        """Order lines by predicted answers only while the predictions rank true answers."""
        self._key = longest_first if prediction_weight(rank_correlation.tau) else shortest_prompt_first

    @property
    def jobs(self) -> list[Job]:
        """Return the jobs that have a waiting request."""
        return [Job(tenant, job) for tenant, of_jobs in self._lines.items() for job in of_jobs]

    def has_job(self, job: Job) -> bool:
        """Return whether a request of this job waits."""
        return job.id in self._lines.get(job.tenant, {})

    def set_weight(self, job: Job, weight: float) -> None:
        """Set a job's weight in the turns of its tenant's jobs; a job without one has weight 1."""
        tenant, name = job
        waiting = self._lines.get(tenant, {})
        kept = {one: other for one, other in self._weights[tenant].items() if one in waiting}
        self._weights[tenant] = kept | {name: weight}
        self._jobs[tenant].set_weights(self._weights[tenant])

    def begin(self, job: Job, running: Iterable[RunningRow], unended: Iterable[Job] = ()) -> None:
        """Let a job that had no waiting request take turns; `running` rows' tokens to come do not count for its start.

        Forgets the counters of the tenant's jobs that neither wait here nor are `unended`.
        """
        tenant, name = job
        unserved = unserved_tokens(running)
        if tenant not in self._lines:
            of_tenants: defaultdict[str, int] = defaultdict(int)
            for (other, _), tokens in unserved.items():
                of_tenants[other] += tokens
            self.tenants.activate(tenant, self._lines, of_tenants)
        of_jobs = {other: tokens for (owner, other), tokens in unserved.items() if owner == tenant}
        waiting = self._lines.get(tenant, {})
        self._jobs[tenant].activate(name, waiting, of_jobs)
        self._jobs[tenant].keep({name, *waiting, *(other for owner, other in unended if owner == tenant)})

    def add(self, request: Request) -> None:
        """Let a request wait."""
        tenant, name = self._job_of[request.id] = job_of(request)
        self._lines[tenant].setdefault(name, ArrivalQueue(self._key)).add(request)

    def discard(self, request_id: str) -> Request | None:
        """Remove a waiting request and return it; None if it does not wait here."""
        job = self._job_of.pop(request_id, None)
        if job is None:
            return None
        lines = self._lines[job.tenant][job.id]
        request = lines[request_id]
        lines.discard(request_id)
        self._drop_if_empty(job)
        return request

    def take(self, job: Job, most: int) -> tuple[Request, ...]:
        """Remove and return the first requests of a job, at most `most`; charge the job and its tenant for them."""
        taken = self._ordered(job).take(most)
        for request in taken:
            del self._job_of[request.id]
        self._drop_if_empty(job)
        self._charge(job, sum(map(service_tokens, taken)))
        return taken

    def take_in_turn(self, tokens: float, most: int) -> list[Request]:
        """Remove and return requests in turn, at most `most`, until these will have `tokens` tokens at their ends."""
        taken = []
        for request in islice(self, max(0, most)):
            if tokens <= 0:
                break
            tokens -= request.prefill + request.remaining
            taken.append(request)
        for request in taken:
            self.discard(request.id)
            self._charge(job_of(request), service_tokens(request))
        return taken

    def put_back(self, request: Request) -> None:
        """Let a request that was taken wait again, as if it had not been taken."""
        self.add(request)
        self._charge(job_of(request), -service_tokens(request))

    def next_job(self, others: Iterable[Job] = ()) -> Job | None:
        """Return the job whose turn it is, among the jobs that wait here and `others` that began here, or None."""
        jobs = {*self.jobs, *others}
        if not jobs:
            return None
        tenant = self.tenants.least_served({job.tenant for job in jobs})[0]
        return Job(tenant, self._jobs[tenant].least_served({name for owner, name in jobs if owner == tenant})[0])

    def size_of(self, job: Job) -> int:
        """Return how many requests of a job wait."""
        return len(self._lines[job.tenant][job.id]) if self.has_job(job) else 0

    def _charge(self, job: Job, tokens: int) -> None:
        self.tenants.charge(job.tenant, tokens)
        self._jobs[job.tenant].charge(job.id, tokens)

    def _drop_if_empty(self, job: Job) -> None:
        tenant, name = job
        if not self._lines[tenant][name]:
            del self._lines[tenant][name]
        if not self._lines[tenant]:
            del self._lines[tenant]


def longest_first(request: Request) -> tuple[float, ...]:
    """Return the sort key of a line within its job: by priority, then by arrival less `AGE_S` for each token."""
    return -request.priority, request.arrived_at - AGE_S * _ordered_tokens(request)


def shortest_prompt_first(request: Request) -> tuple[float, ...]:
    """Return the sort key of a line while nothing is known of answers: by prompts, so that similar rows run together.

    Simulated with useless predictions, 1,000 lines whose shortest prompts have the longest answers take 0.7 times as
    long as in the order of these predictions, and 0.8 times as long as with the longest prompts first. Where the
    longest prompts have the longest answers, they take 0.8 to 1.02 times as long as in the order of the predictions.
    """
    return -request.priority, request.arrived_at + AGE_S * request.length


def _ordered_tokens(request: Request) -> float:
    """Return a number of tokens that orders lines by their answers' powers of two, and between these by their prompts.

    In rectangular memory 1,000 lines took 1.35 times as long by the sum of prompt and answer as by answers alone, if
    long prompts have short answers, and 1.14 times as long by answers alone as by the sum, if they have any answers.
    """
    power = 1 << max(1, min(request.predicted, request.limit)).bit_length() - 1
    return power * (1 + request.length / (request.length + LONG_PROMPT))


def unserved_tokens(rows: Iterable[RunningRow]) -> dict[Job, int]:
    """Return the tokens that background rows are still predicted to generate, by job."""
    unserved: defaultdict[Job, int] = defaultdict(int)
    for row in rows:
        if row.request.background:
            unserved[job_of(row.request)] += max(0, row.request.predicted - row.generated)
    return unserved

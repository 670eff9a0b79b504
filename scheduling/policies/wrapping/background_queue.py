"""The waiting background requests, in the order in which they get capacity: tenants in turn, then jobs, then lines.

Tenants take turns by their weights, and the jobs of a tenant by equal weights, in tokens of service (VTC). The counter
of a new tenant or job begins where those of the others would be without the tokens that their running rows still have
to generate. So a small job goes first as rows end, however many rows of another job run and wait.

Within a job the longest answers go first, so that the job does not end with a few long rows on an empty fleet (longest
processing time first). Of answers that differ by less than a factor of two the longest prompts go first, so that rows
that run together are alike, which leaves least padding. While predictions do not rank answers, the shortest prompts go
first, whatever is predicted. Starvation: a line goes ahead of one that came before it only by `AGE_S` for each token by
which it may be longer, or its prompt shorter; and each job's turn comes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from scheduling.arrival_queue import ArrivalQueue
from scheduling.policies.virtual_token_counters import VirtualTokenCounters, service_tokens
from scheduling.policy import RunningRow
from scheduling.rank_correlation import prediction_weight
from scheduling.request import Request

Job = tuple[str, str]  # tenant, id of the bulk job; the id is empty for requests that belong to none
# Seconds of waiting that make up for a token of predicted length. A job's lines come within seconds to minutes, so that
# any value far above 1 orders them by length; with 10 none is overtaken by lines that come some hours later. Not tuned.
AGE_S = 10.0
LONG_PROMPT = 512  # tokens of a prompt that is neither short nor long; any typical length does
# The most waiting requests in a copy of the queue. Copies are made for forecasts, which play at most 400 answers;
# copying a million requests would keep a planner from deciding for nine seconds. Not tuned.
COPIED = 2048


class BackgroundQueue:
    """Waiting background requests by tenant and job, and how much each has been served."""

    def __init__(self) -> None:
        self.tenants = VirtualTokenCounters()
        self._jobs: defaultdict[str, VirtualTokenCounters] = defaultdict(VirtualTokenCounters)  # by tenant
        # by tenant and job; only those with a waiting request
        self._lines: defaultdict[str, dict[str, ArrivalQueue]] = defaultdict(dict)
        self._job_of: dict[str, Job] = {}
        self._weights: defaultdict[str, dict[str, float]] = defaultdict(dict)  # of jobs, by tenant
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
            tenant: self._jobs[tenant].in_turn({job: self._in_order((tenant, job)) for job in of_jobs}, service_tokens)
            for tenant, of_jobs in self._lines.items()
        }
        return self.tenants.in_turn(of_tenants, service_tokens)

    def _in_order(self, job: Job) -> Iterator[Request]:
        yield from self._ordered(job)

    def _ordered(self, job: Job) -> ArrivalQueue:
        """Return a job's lines, sorted by the key in force: a new key costs time only for jobs whose turn comes."""
        lines = self._lines[job[0]][job[1]]
        lines.sort_by(self._key)
        return lines

    def set_rank_correlation(self, tau: float | None) -> None:
        """Order lines by predicted answers only while these rank the true ones."""
        self._key = longest_first if prediction_weight(tau) else shortest_prompt_first

    @property
    def jobs(self) -> list[Job]:
        """The jobs with a waiting request."""
        return [(tenant, job) for tenant, of_jobs in self._lines.items() for job in of_jobs]

    def has_job(self, job: Job) -> bool:
        """Return whether a request of this job waits."""
        return job[1] in self._lines.get(job[0], {})

    def waiting_of(self, job: Job) -> list[Request]:
        """Return the waiting requests of a job."""
        return list(self._lines[job[0]][job[1]]) if self.has_job(job) else []

    def set_weight(self, job: Job, weight: float) -> None:
        """Let a job take part in its tenant's turns with this weight; others have weight 1."""
        tenant, name = job
        waiting = self._lines.get(tenant, {})
        kept = {one: other for one, other in self._weights[tenant].items() if one in waiting}
        self._weights[tenant] = kept | {name: weight}
        self._jobs[tenant].set_weights(self._weights[tenant])

    def begin(self, job: Job, running: Iterable[RunningRow], unended: Iterable[Job] = ()) -> None:
        """Let a job that had no waiting request take part; its counter begins without the others' `running` rows.

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
        lines = self._lines[job[0]][job[1]]
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

    def put_back(self, request: Request) -> None:
        """Let a request that was taken wait again, as if it had not been taken."""
        self.add(request)
        self._charge(job_of(request), -service_tokens(request))

    def next_job(self, others: Iterable[Job] = ()) -> Job | None:
        """Return the job whose turn it is, among those that wait here and `others` that began here, or None."""
        jobs = {*self.jobs, *others}
        if not jobs:
            return None
        tenant = self.tenants.least_served({job[0] for job in jobs})[0]
        return tenant, self._jobs[tenant].least_served({name for owner, name in jobs if owner == tenant})[0]

    def size_of(self, job: Job) -> int:
        """Return how many requests of a job wait."""
        return len(self._lines[job[0]][job[1]]) if self.has_job(job) else 0

    def _charge(self, job: Job, tokens: int) -> None:
        self.tenants.charge(job[0], tokens)
        self._jobs[job[0]].charge(job[1], tokens)

    def _drop_if_empty(self, job: Job) -> None:
        tenant, name = job
        if not self._lines[tenant][name]:
            del self._lines[tenant][name]
        if not self._lines[tenant]:
            del self._lines[tenant]


def job_of(request: Request) -> Job:
    """Return the job of a background request."""
    return request.tenant, request.job


def longest_first(request: Request) -> tuple[float, ...]:
    """Return the sort key of a line within its job: the highest priority first, then the longest, aged."""
    return -request.priority, request.arrived_at - AGE_S * _ordered_tokens(request)


def shortest_prompt_first(request: Request) -> tuple[float, ...]:
    """Return the sort key of a line while nothing is known of answers: by its prompt, so that alike rows run together.

    Simulated with useless predictions, 1,000 lines whose shortest prompts have the longest answers take 0.7 times as
    long as in the order of these predictions, and 0.8 times as long as with the longest prompts first. Where the
    longest prompts have the longest answers, they take 0.8 to 1.02 times as long as in the order of the predictions.
    """
    return -request.priority, request.arrived_at + AGE_S * request.length


def _ordered_tokens(request: Request) -> float:
    """Return a number of tokens that orders lines by their answers' powers of two, and between these by their prompts.

    With prompt and answer summed, 1,000 lines took 1.35 times as long in rectangular memory as with answers alone,
    where long prompts have short answers; with answers alone 1.14 times as long as with sums, where they have any.
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

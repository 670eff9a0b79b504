"""The policy of background requests, and the queue in which they wait until they are shown to it, a few at a time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from scheduling.costs import ServingTime
from scheduling.policy import Assignment, Policy, RunningRow, WaitingBatch, Worker, waiting_batch
from scheduling.request import Job, Request, job_of
from scheduling.sharing.background.background_queue import BackgroundQueue
from scheduling.sharing.background.row_shares import background_rows


class BackgroundFeed:
    """A policy that sees only the requests that were shown to it, and the queue in which all others wait."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.queue = policy, BackgroundQueue()
        self.shown: dict[str, Request] = {}  # the requests that the policy has seen and not assigned
        self.rows: Sequence[RunningRow] = ()  # the background rows at the last decision
        self.running: set[Job] = set()  # the jobs of these rows, and of requests that were assigned since

    def follow(self, workers: Iterable[Worker]) -> None:
        """Read from the workers which background rows run now."""
        self.rows = background_rows(workers)
        self.running = {job_of(row.request) for row in self.rows}

    def next_requests(self, most: int) -> list[Request]:
        """Return the requests that the policy has seen and not assigned, then at most `most` of the queue."""
        return [*self.shown.values(), *islice(self.queue, most)]

    def shown_of_jobs(self) -> Counter[Job]:
        """Return how many requests of each job the policy has seen and not assigned."""
        return Counter(map(job_of, self.shown.values()))

    def add(self, request: Request) -> None:
        """Let a request wait."""
        self._begin(job_of(request))
        self.queue.add(request)

    def _begin(self, job: Job) -> None:
        if not self.queue.has_job(job):
            self.queue.begin(job, self.rows, self.running | self.shown_of_jobs().keys())

    def remove(self, request_id: str) -> Request | None:
        """Remove a waiting request and return it; None if it does not wait here."""
        request = self.shown.pop(request_id, None)
        if request is None:
            return self.queue.discard(request_id)
        self.policy.discard(request_id)
        return request

    def withdraw(self) -> None:
        """Take back the requests that the policy has seen and not assigned."""
        for request in list(self.shown.values()):
            self.remove(request.id)
            self.queue.put_back(request)

    def show(self, requests: Iterable[Request], now: float) -> None:
        """Show the policy requests that were taken from the queue."""
        for request in requests:
            self.shown[request.id] = request
            self.policy.add(request, now)

    def assigned(self, assignment: Assignment) -> list[Request]:
        """Stop counting the requests of the policy's assignment as waiting; return them as they waited."""
        self.running.update(map(job_of, assignment.requests))
        return [self.shown.pop(request.id, request) for request in assignment.requests]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Gives back to the policy the requests that did not fit."""
        self.policy.out_of_memory(assignment, now)
        for request in assignment.requests:
            self._begin(job_of(request))
            self.shown[request.id] = request

    def waiting(self, costs: ServingTime | None, now: float) -> Iterator[WaitingBatch]:
        """Yield the policy's batches, then the requests that it has not seen, one by one."""
        yield from self.policy.waiting(now)
        for request in self.queue:
            yield waiting_batch((request,), costs, now)

"""The fleet as policies see it: live workers with their memory, serving times, rows and remaining work.

Keeps which batches are open on whom, because policies are told of each end in the words of their own assignment.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from models.batch_claims import Claim
from models.live_fleet import LiveWorker, OpenBatch
from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment, Policy, RunningRow, Worker
from scheduling.request import Request

Costs = Callable[[LiveWorker], ServingTime]


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """An open batch as its assignment; `policy` None if it was made by a policy that is no longer in force."""

    assignment: Assignment
    policy: Policy | None
    requests: Mapping[str, Request]


class FleetView:
    """Which batches are open, and what they make of each worker."""

    def __init__(self) -> None:
        self._underway: dict[int, InFlightBatch] = {}
        self._open: Sequence[OpenBatch] = ()

    def assigned(self, claims: Iterable[Claim], policy: Policy) -> None:
        """Remember what was just assigned."""
        for claim in claims:
            requests = {request.id: request for request in claim.assignment.requests}
            self._underway[claim.batch_id] = InFlightBatch(claim.assignment, policy, requests)

    def unknown(self, open_batches: Iterable[OpenBatch]) -> list[int]:
        """Those of the open batches that an earlier planner assigned."""
        return [batch.id for batch in open_batches if batch.id not in self._underway]

    def inherit(self, open_batches: Iterable[OpenBatch], requests: Mapping[int, Sequence[Request]]) -> None:
        """Remember batches that an earlier planner assigned; `requests` are theirs, by batch."""
        for batch in open_batches:
            if batch.id in requests:
                assignment = Assignment(batch.worker, tuple(requests[batch.id]), joins=batch.joins)
                self._underway[batch.id] = InFlightBatch(assignment, None, {r.id: r for r in assignment.requests})

    def forget_policies(self) -> None:
        """Another policy is in force: what is underway ends without anybody being told."""
        self._underway = {batch_id: replace(batch, policy=None) for batch_id, batch in self._underway.items()}

    def ended(self, open_batches: Sequence[OpenBatch]) -> dict[int, InFlightBatch]:
        """Take note of what is open now; what was underway and is not open any more."""
        self._open = open_batches
        still = {batch.id for batch in open_batches}
        gone = {batch_id: batch for batch_id, batch in self._underway.items() if batch_id not in still}
        self._underway = {batch_id: batch for batch_id, batch in self._underway.items() if batch_id in still}
        return gone

    def workers(
        self, live: Collection[LiveWorker], costs: Costs, now: float, lookahead_s: float
    ) -> dict[str, list[Worker]]:
        """Workers by model; one whose only batch should end within `lookahead_s` counts as idle: so it never is."""
        of_worker = defaultdict(list)
        for batch in self._open:
            of_worker[batch.worker].append(batch)
        by_model = defaultdict(list)
        for worker in live:
            batches = of_worker[worker.name]
            queue = [batch for batch in batches if not batch.joins]
            busy_s = sum(_remaining_s(batch, now) for batch in queue)
            queued = len(queue)
            if queued == 1 and busy_s < lookahead_s:
                queued = 0
            joined = [batch for batch in batches if batch.joins]
            by_model[worker.model].append(
                Worker(
                    name=worker.name,
                    memory=KvMemory(worker.theta_bytes, worker.delta_bytes),
                    costs=costs(worker),
                    rows=tuple(row for batch in joined for row in self._rows(batch, now)),
                    busy_s=max([busy_s, *(_remaining_s(batch, now) for batch in joined)]),
                    queued=queued,
                )
            )
        return by_model

    def _rows(self, batch: OpenBatch, now: float) -> Iterable[RunningRow]:
        """What is left of a batch that joined; its progress is known up to the last heartbeat, and guessed since."""
        started_at = now if batch.started_at is None else batch.started_at
        share = min(1.0, (now - started_at) / batch.estimated_s) if batch.estimated_s > 0 else 0.0
        requests = self._underway[batch.id].requests
        iterations = share * max((request.remaining for request in requests.values()), default=0)
        for request in (requests[request_id] for request_id in batch.request_ids if request_id in requests):
            gained = max(batch.progress_tokens, int(iterations))
            yield RunningRow(request, min(request.generated + gained, request.limit - 1), started_at)


def _remaining_s(batch: OpenBatch, now: float) -> float:
    elapsed_s = 0.0 if batch.started_at is None else now - batch.started_at
    return max(0.0, batch.estimated_s - elapsed_s)


def estimated(assignments: Iterable[Assignment], workers: Iterable[Worker]) -> list[Assignment]:
    """The same assignments with the seconds that each should take, where a policy does not care to say."""
    by_name = {worker.name: worker for worker in workers}
    return [
        assignment if assignment.estimated_s or not assignment.requests else _estimated(assignment, by_name)
        for assignment in assignments
    ]


def _estimated(assignment: Assignment, workers: Mapping[str, Worker]) -> Assignment:
    """Joiners are taken to decode beside the rows that run now."""
    worker = workers[assignment.worker]
    length = max(request.prefill for request in assignment.requests)
    generation_length = max(request.remaining for request in assignment.requests)
    if assignment.iteration_limit is not None:
        generation_length = min(generation_length, assignment.iteration_limit)
    size = len(assignment.requests) + len(worker.rows)
    return replace(assignment, estimated_s=worker.costs.serve_s(size, length, generation_length))

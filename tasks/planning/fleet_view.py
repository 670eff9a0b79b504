"""The fleet as policies see it: live workers with their memory, serving times, running rows and remaining work.

It also keeps the assignment of each batch in flight, because an open batch in the database has only request ids.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from models.planning.batch_claims import Claim
from models.planning.live_fleet import OpenBatch
from models.registered_workers import RegisteredWorker
from scheduling.costs import ServingTime
from scheduling.forecast.forecast import PresentWork
from scheduling.policy import Assignment, RunningRow, Worker
from scheduling.request import Request
from scheduling.sharing.model_fleet import with_model
from scheduling.simulation.simulator import StartedBatch
from tasks.planning.policies_by_model import PoliciesByModel

ServingTimeOf = Callable[[RegisteredWorker], ServingTime]


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """An open batch as it was assigned, and its requests by id."""

    assignment: Assignment
    requests: Mapping[str, Request]


class FleetView:
    """Keeps the batches in flight, and describes the workers that serve them for policies and forecasts."""

    def __init__(self) -> None:
        self._in_flight: dict[int, InFlightBatch] = {}
        self._open: Sequence[OpenBatch] = ()

    def add(self, claims: Iterable[Claim]) -> None:
        """Adds batches that were just assigned; they count as open until the next `update`."""
        for claim in claims:
            assignment = claim.assignment
            requests = {request.id: request for request in assignment.requests}
            self._in_flight[claim.batch_id] = InFlightBatch(assignment, requests)
            opened = OpenBatch(
                claim.batch_id, assignment.worker, assignment.joins, assignment.estimated_s, None, 0, tuple(requests)
            )
            self._open = (*self._open, opened)

    @property
    def busy(self) -> bool:
        """Whether any batch is in flight."""
        return bool(self._in_flight)

    def unknown(self, open_batches: Iterable[OpenBatch]) -> list[int]:
        """Returns the ids of the open batches that an earlier planner assigned."""
        return [batch.id for batch in open_batches if batch.id not in self._in_flight]

    def inherit(self, open_batches: Iterable[OpenBatch], requests: Mapping[int, Sequence[Request]]) -> None:
        """Adds batches that an earlier planner assigned; `requests` has their requests, by batch id."""
        for batch in open_batches:
            if batch.id in requests:
                assignment = Assignment(batch.worker, tuple(requests[batch.id]), joins=batch.joins)
                self._in_flight[batch.id] = InFlightBatch(assignment, {r.id: r for r in assignment.requests})

    def update(self, open_batches: Sequence[OpenBatch]) -> list[int]:
        """Replaces the open batches; returns the ids of batches that were in flight and have ended."""
        self._open = open_batches
        open_ids = {batch.id for batch in open_batches}
        ended = [batch_id for batch_id in self._in_flight if batch_id not in open_ids]
        self._in_flight = {batch_id: batch for batch_id, batch in self._in_flight.items() if batch_id in open_ids}
        return ended

    def workers(
        self, live: Collection[RegisteredWorker], serving_time_of: ServingTimeOf, now: float, lookahead_s: float
    ) -> dict[str, list[Worker]]:
        """Returns the live workers by model, with their rows and remaining work.

        A worker whose only batch should end within `lookahead_s` counts as idle, so that its next batch comes in time.
        """
        of_worker = defaultdict(list)
        for batch in self._open:
            of_worker[batch.worker].append(batch)
        by_model = defaultdict(list)
        for worker in live:
            static = [batch for batch in of_worker[worker.name] if not batch.joins]
            joined = [batch for batch in of_worker[worker.name] if batch.joins]
            static_s = sum(_remaining_s(batch, now) for batch in static)
            ends_soon = len(static) == 1 and static_s < lookahead_s
            seen = worker if of_worker[worker.name] else worker.changed
            by_model[seen.model].append(
                Worker(
                    name=worker.name,
                    memory=seen.memory.sharing(worker.report.shared_tokens if joined else 0),
                    costs=serving_time_of(seen),
                    rows=tuple(row for batch in joined for row in self._rows(batch, worker, now)),
                    busy_s=max([static_s, *(_remaining_s(batch, now) for batch in joined)]),
                    queued=0 if ends_soon else len(static),
                    lacks=worker.lacks,
                    prefix_cache=worker.facts.prefix_cache,
                    model=worker.changed.model,
                    changing=worker.changing,
                    loadable=worker.loadable,
                )
            )
        return by_model

    def present_work(self, workers: Iterable[Worker], step_costs: Mapping[str, ServingTime]) -> list[PresentWork]:
        """Returns the workers and their run-to-completion batches for a forecast; `step_costs` are by worker's name."""
        static = defaultdict(list)
        for batch in self._open:
            if not batch.joins:
                static[batch.worker].append(batch)
        return [
            PresentWork(
                worker,
                tuple(one for batch in static[worker.name] if (one := self._started(batch)).assignment.requests),
                max((batch.progress_tokens for batch in static[worker.name]), default=0),
                step_costs[worker.name],
                _loads_s(worker, worker.model) if worker.changing and not (worker.rows or static[worker.name]) else 0.0,
            )
            for worker in workers
        ]

    def _started(self, batch: OpenBatch) -> StartedBatch:
        known = self._in_flight[batch.id]
        requests = tuple(known.requests[one] for one in batch.request_ids if one in known.requests)
        return StartedBatch(replace(known.assignment, requests=requests), batch.started_at)

    def _rows(self, batch: OpenBatch, worker: RegisteredWorker, now: float) -> Iterable[RunningRow]:
        """Yields the rows of a batch that joined, with the worker's own predictions for them.

        A row has the tokens that the last heartbeat says, and those of the seconds since by the estimated serving time.
        """
        started_at = now if batch.started_at is None else batch.started_at
        untold_s = max(0.0, min(now - started_at, worker.heartbeat_age_s))  # it may have begun after `now` was read
        requests, lengths = self._in_flight[batch.id].requests, worker.report.row_lengths
        longest = max((request.remaining for request in requests.values()), default=0)
        share = min(1.0, untold_s / batch.estimated_s) if batch.estimated_s > 0 else 0.0
        gained = batch.progress_tokens + int(longest * share)
        for request in (requests[request_id] for request_id in batch.request_ids if request_id in requests):
            known = lengths[request.id].of(request) if request.id in lengths else request
            yield RunningRow(known, min(request.generated + gained, request.limit - 1), started_at)


def work_after_change(workers: Iterable[Worker], model: str) -> list[PresentWork]:
    """Returns the worker that would serve the model soonest if it began to change now; empty if none can load it."""
    able = [(_loads_s(worker, model), worker.name, worker) for worker in workers if model in worker.loadable]
    soonest = sorted(able, key=lambda one: one[:2])[:1]
    return [PresentWork(with_model(worker, model), loads_s=loads_s) for loads_s, _, worker in soonest]


def _loads_s(worker: Worker, model: str) -> float:
    """Returns the seconds until a change is done, which begins after a batch, or after rows ran on for `change_s`."""
    change_s = worker.loadable[model].change_s
    return change_s + (worker.busy_s if worker.queued else change_s if worker.rows else 0.0)


def _remaining_s(batch: OpenBatch, now: float) -> float:
    elapsed_s = 0.0 if batch.started_at is None else now - batch.started_at
    return max(0.0, batch.estimated_s - elapsed_s)


def with_estimates(assignments: Iterable[Assignment], workers: Iterable[Worker]) -> list[Assignment]:
    """Returns the assignments, with an estimated serving time where the policy gave none."""
    by_name = {worker.name: worker for worker in workers}
    return [
        assignment if assignment.estimated_s or not assignment.requests else _with_estimate(assignment, by_name)
        for assignment in assignments
    ]


def _with_estimate(assignment: Assignment, workers: Mapping[str, Worker]) -> Assignment:
    """Returns the assignment with its estimate; joiners are assumed to decode together with all rows that run now."""
    worker = workers[assignment.worker]
    length = max(request.prefill for request in assignment.requests)
    generation_length = max(request.remaining for request in assignment.requests)
    if assignment.iteration_limit is not None:
        generation_length = min(generation_length, assignment.iteration_limit)
    size = len(assignment.requests) + len(worker.rows)
    return replace(assignment, estimated_s=worker.costs.serve_s(size, length, generation_length))


def next_due_in_s(
    policies: PoliciesByModel,
    workers: Mapping[str, Sequence[Worker]],
    claims: Sequence[Claim],
    now: float,
    lookahead_s: float,
) -> float | None:
    """Returns the seconds until the planner should step again by itself, or None.

    It steps when a policy wants to be asked and, while requests wait, `lookahead_s` before a worker is out of batches.
    """
    policy_s = policies.due_in_s(now)
    due_s = [] if policy_s is None else [policy_s]
    if len(policies):
        busy_s = [worker.busy_s for of_model in workers.values() for worker in of_model if worker.queued == 1]
        busy_s += [claim.assignment.estimated_s for claim in claims if not claim.assignment.joins]
        due_s += [max(0.0, seconds - lookahead_s) for seconds in busy_s]
    return min(due_s, default=None)

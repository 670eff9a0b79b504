"""Writes the trace of a simulation, and keeps of each unanswered request what its entry will need."""

from collections import Counter
from collections.abc import Iterable, Mapping

from scheduling.policy import Assignment
from scheduling.request import Request
from scheduling.simulation.engine_costs import Tokens, reads
from scheduling.simulation.simulated_worker import (
    RequestDone,
    Requeued,
    RowsJoined,
    SimulatedWorker,
    StaticBatchDone,
)
from scheduling.simulation.trace import BatchRun, SimulatedAnswer, Trace


class TraceRecorder:
    """Accounts for assignments and their outcomes; decides nothing."""

    def __init__(self, first_arrival_at: float) -> None:
        self._trace = Trace(first_arrival_at=first_arrival_at)
        self._first_started_at: dict[str, float] = {}
        self._schedules: Counter[str] = Counter()
        self._generated: dict[str, int] = {}  # tokens that requests had when they were requeued

    @property
    def answers(self) -> Mapping[str, SimulatedAnswer]:
        """The answers so far, by request."""
        return self._trace.answers

    def assigned(self, assignment: Assignment, now: float) -> None:
        """Its requests start, perhaps not for the first time and perhaps with fewer tokens than they came back with."""
        for request in assignment.requests:
            self._first_started_at.setdefault(request.id, now)
            self._schedules[request.id] += 1
            self.discarded(request, self._generated.pop(request.id, 0))

    def discarded(self, kept: Request, generated: int) -> None:
        """Of the tokens generated so far, those that the request does not keep count as invalid."""
        lost = generated - kept.generated
        if lost > 0:
            useful_reads = reads(kept.prefill, lost)
            self._trace.tokens += Tokens(valid=-lost, invalid=lost, useful_reads=-useful_reads)

    def answered(self, done: RequestDone, worker: str, now: float) -> None:
        """A request has its last token."""
        request = done.request
        started_at, schedules = self._first_started_at.pop(request.id), self._schedules.pop(request.id)
        self._trace.answers[request.id] = SimulatedAnswer(
            request.id, request.arrived_at, started_at, now, done.generated, schedules, worker
        )

    def requeued(self, requeued: Requeued) -> None:
        """A request waits again with the tokens that it has."""
        self._trace.preempted += requeued.preempted
        self._generated[requeued.request.id] = requeued.request.generated

    def static_batch_done(self, done: StaticBatchDone, worker: str, now: float) -> None:
        """A run-to-completion batch has ended or run out of memory."""
        run = done.run
        self._trace.batches.append(
            BatchRun(
                worker,
                _ids(done.assignment),
                done.started_at,
                now,
                run.length,
                run.iterations,
                done.assignment.estimated_s,
                run.out_of_memory,
                joined=False,
            )
        )

    def rows_joined(self, joined: RowsJoined, worker: str, now: float) -> None:
        """A group has entered a continuous batch."""
        self._trace.batches.append(
            BatchRun(
                worker,
                _ids(joined.assignment),
                now,
                joined.at,
                joined.length,
                0,
                joined.assignment.estimated_s,
                out_of_memory=False,
                joined=True,
            )
        )

    def ran_out_of_memory(self) -> None:
        """Some work did not fit its worker."""
        self._trace.out_of_memory += 1

    def failed(self, request: Request, now: float) -> None:
        """A request fits no worker and will not be answered."""
        self._trace.failed[request.id] = now

    def finish(self, workers: Iterable[SimulatedWorker]) -> Trace:
        """The trace, with what each worker computed; to be called once, at the end."""
        for worker in workers:
            name = worker.instance.name
            self._trace.tokens += worker.tokens
            self._trace.busy_s[name] = worker.busy_s
            self._trace.completed_at[name] = worker.completed_at
        return self._trace


def _ids(assignment: Assignment) -> tuple[str, ...]:
    return tuple(request.id for request in assignment.requests)

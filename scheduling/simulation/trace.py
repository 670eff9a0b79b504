"""The result of a simulation, its figures as the papers report them, and the recorder that writes it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduling.policy import Assignment
from scheduling.request import Request
from scheduling.simulation.engine_costs import Tokens, reads
from scheduling.simulation.simulated_worker import SimulatedWorker
from scheduling.simulation.worker_outcomes import ModelLoaded, RequestDone, Requeued, RowsJoined, StaticBatchDone


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """One answered request; instants in virtual seconds."""

    id: str
    arrived_at: float
    started_at: float
    finished_at: float
    generated: int
    schedules: int  # the number of times that it was assigned
    worker: str
    model: str = ""

    @property
    def response_s(self) -> float:
        """Return the seconds from arrival to the last token."""
        return self.finished_at - self.arrived_at


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run-to-completion batch, or, with `joined`, one group of rows that joined a continuous batch.

    A group has no iterations, and it ends when it has joined. Instants are in virtual seconds, lengths in tokens.
    """

    worker: str
    ids: tuple[str, ...]
    started_at: float
    ended_at: float
    length: int
    iterations: int
    estimated_s: float
    out_of_memory: bool = False
    joined: bool = False


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A worker's change of model; instants are in virtual seconds."""

    worker: str
    model: str
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Response times: the seconds from arrival to the last token."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(slots=True)
class Trace:
    """All that happened in one simulation."""

    answers: dict[str, SimulatedAnswer] = field(default_factory=dict)
    failed: dict[str, float] = field(default_factory=dict)  # instants of requests too large for any worker, by id
    batches: list[BatchRun] = field(default_factory=list)
    changes: list[ModelChange] = field(default_factory=list)
    tokens: Tokens = field(default_factory=Tokens)
    busy_s: dict[str, float] = field(default_factory=dict)  # the seconds that each worker computed
    completed_at: dict[str, float] = field(default_factory=dict)  # the end of each worker's last work
    first_arrival_at: float = 0.0
    out_of_memory: int = 0
    preempted: int = 0

    @property
    def makespan_s(self) -> float:
        """Return the seconds from the first arrival to the last answer."""
        return max((answer.finished_at for answer in self.answers.values()), default=0.0) - self.first_arrival_at

    @property
    def requests_per_s(self) -> float:
        """Return the answered requests a second."""
        return len(self.answers) / self.makespan_s if self.answers else 0.0

    @property
    def valid_tokens_per_s(self) -> float:
        """Return the tokens a second that are part of an answer."""
        return self.tokens.valid / self.makespan_s if self.answers else 0.0

    @property
    def total_tokens_per_s(self) -> float:
        """Return the generated tokens a second, tokens after an EOS included."""
        return (self.tokens.valid + self.tokens.invalid) / self.makespan_s if self.answers else 0.0

    @property
    def response_s(self) -> ResponseTimes:
        """Return mean, percentiles and maximum of the response times."""
        times = np.array([answer.response_s for answer in self.answers.values()] or [0.0])
        p50, p95, p99 = np.percentile(times, [50, 95, 99])
        return ResponseTimes(float(times.mean()), float(p50), float(p95), float(p99), float(times.max()))

    @property
    def batch_size_mean(self) -> float:
        """Return the mean size of run-to-completion batches, or without such batches the mean rows of an iteration."""
        sizes = [len(batch.ids) for batch in self.batches if not batch.joined]
        if sizes:
            return float(np.mean(sizes))
        return self.tokens.row_iterations / self.tokens.iterations if self.tokens.iterations else 0.0

    @property
    def wasted_share(self) -> float:
        """Return the share of reads of cached tokens that added nothing to an answer (Eq. 2-4, over all rows)."""
        return 1 - self.tokens.useful_reads / self.tokens.reads if self.tokens.reads else 0.0

    @property
    def load_imbalance_s(self) -> float:
        """Return the standard deviation of the workers' completion times (SCLS 5.3)."""
        return float(np.std(list(self.completed_at.values()) or [0.0]))

    def early_returns(self, slice_tokens: int) -> float:
        """Return the share of batches that ended before their slice was over (SCLS 5.2)."""
        runs: Sequence[BatchRun] = [batch for batch in self.batches if not batch.out_of_memory]
        return sum(batch.iterations < slice_tokens for batch in runs) / len(runs) if runs else 0.0


class TraceRecorder:
    """Records assignments and their outcomes; decides nothing."""

    def __init__(self, first_arrival_at: float) -> None:
        self._trace = Trace(first_arrival_at=first_arrival_at)
        self._first_started_at: dict[str, float] = {}
        self._schedules: Counter[str] = Counter()
        self._generated: dict[str, int] = {}  # the tokens that requests had when they were requeued

    @property
    def answers(self) -> Mapping[str, SimulatedAnswer]:
        """Return the answers so far, by the request's id."""
        return self._trace.answers

    def assigned(self, assignment: Assignment, now: float) -> None:
        """Record an assignment; a request that ran before may now keep fewer tokens than it came back with."""
        for request in assignment.requests:
            self._first_started_at.setdefault(request.id, now)
            self._schedules[request.id] += 1
            self.discarded(request, self._generated.pop(request.id, 0))

    def discarded(self, kept: Request, generated: int) -> None:
        """Count as invalid the generated tokens that the request does not keep."""
        lost = generated - kept.generated
        if lost > 0:
            useful_reads = reads(kept.prefill, lost)
            self._trace.tokens += Tokens(valid=-lost, invalid=lost, useful_reads=-useful_reads)

    def answered(self, done: RequestDone, worker: str, now: float) -> None:
        """Record that a request has its last token."""
        request = done.request
        started_at, schedules = self._first_started_at.pop(request.id), self._schedules.pop(request.id)
        self._trace.answers[request.id] = SimulatedAnswer(
            request.id, request.arrived_at, started_at, now, done.generated, schedules, worker, request.model
        )

    def requeued(self, requeued: Requeued) -> None:
        """Record that a request waits again with its generated tokens."""
        self._trace.preempted += requeued.preempted
        self._generated[requeued.request.id] = requeued.request.generated

    def row_preempted(self) -> None:
        """Record that a row had to leave a batch and waits at its worker."""
        self._trace.preempted += 1

    def static_batch_done(self, done: StaticBatchDone, worker: str, now: float) -> None:
        """Record that a run-to-completion batch has ended or run out of memory."""
        run, ids, estimated_s = done.run, _ids(done.assignment), done.assignment.estimated_s
        batch = BatchRun(worker, ids, done.started_at, now, run.length, run.iterations, estimated_s, run.out_of_memory)
        self._trace.batches.append(batch)

    def rows_joined(self, joined: RowsJoined, worker: str, now: float) -> None:
        """Record that a group has entered a continuous batch."""
        ids, estimated_s = _ids(joined.assignment), joined.assignment.estimated_s
        self._trace.batches.append(BatchRun(worker, ids, now, joined.at, joined.length, 0, estimated_s, joined=True))

    def model_loaded(self, loaded: ModelLoaded, worker: str, now: float) -> None:
        """Record that a worker has changed its model."""
        self._trace.changes.append(ModelChange(worker, loaded.model, loaded.began_at, now))

    def ran_out_of_memory(self) -> None:
        """Record that some work did not fit its worker."""
        self._trace.out_of_memory += 1

    def failed(self, request: Request, now: float) -> None:
        """Record that a request fits no worker and will not be answered."""
        self._trace.failed[request.id] = now

    def finish(self, workers: Iterable[SimulatedWorker]) -> Trace:
        """Return the trace with each worker's computed tokens; call it once, at the end."""
        for worker in workers:
            name = worker.instance.name
            self._trace.tokens += worker.tokens
            self._trace.busy_s[name] = worker.busy_s
            self._trace.completed_at[name] = worker.completed_at
        return self._trace


def _ids(assignment: Assignment) -> tuple[str, ...]:
    return tuple(request.id for request in assignment.requests)

"""The only interface between a policy and its runner: the live planner or the simulator.

A policy keeps the waiting requests and returns decisions as values. It never carries out a decision and never reads a
clock (`now` is an argument, in seconds). It can be rebuilt at any moment by adding the queued requests again.

The runner's side of the contract:

1. `add` each waiting request once predicted, and again when it comes back unfinished (`generated` > 0) or is retried.
2. Describe every live worker as a `Worker`, busy ones included (a policy learns from them how much memory the fleet
   has), call `assign`, carry out each `Assignment` or hand its requests back with `add`. Several assignments for one
   worker run one after the other, in the order given.
3. Report each batch that ran out of memory with `out_of_memory`, and each cancel of a waiting request with `discard`.
   A request that ran out of memory alone comes back through `add` with `outgrew_tokens`, or fails if no worker is
   larger. In continuous batching, joiners that do not fit wait at a live worker until rows have left, or come back
   through `add`; the simulator reports them with `out_of_memory`. When the running rows outgrow the memory, the engine
   preempts one, which waits at the worker until it fits again; it stays in `rows`.
4. Call `assign` again when something changed, or at `wake_at`; in mode `batch` only while some worker is idle.
5. Carry out a change of model: the worker takes no more work, its batches end, its rows run on for at most the seconds
   of the change and then come back through `add`; then it loads the model. Meanwhile describe it with the new model and
   as `changing`.
6. Keep the `generated` tokens of each assigned request; with `generated` 0 the request starts anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from scheduling.costs import ServingTime
from scheduling.kv_memory import KvMemory
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request, lacking, to_retry
from scheduling.worker_facts import Loadable

Mode = Literal["batch", "queue", "continuous"]
"""What a policy assigns: a batch to an idle worker, batches to any worker's queue, or rows to running batches."""


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A request in a worker's running batch; `generated` counts all its generated tokens, earlier slices included."""

    request: Request
    generated: int
    started_at: float


@dataclass(frozen=True, slots=True)
class Worker:
    """The state of a worker when a decision is made.

    `rows` are the rows of its running continuous batch and those about to join it; `queued` counts its
    run-to-completion batches that have not ended; `busy_s` is the estimated time until all of these have ended.
    `loadable` has the models that it can load, `model` among them; it is empty if it always serves the same model.
    """

    name: str
    memory: KvMemory
    costs: ServingTime
    rows: tuple[RunningRow, ...] = ()
    busy_s: float = 0.0
    queued: int = 0
    lacks: frozenset[str] = frozenset()  # names of the abilities that its engine lacks
    prefix_cache: bool = False  # whether its engine reuses the cached beginning of an earlier prompt
    model: str = ""
    changing: bool = False  # whether it still loads `model`; it gets no work until then
    loadable: Mapping[str, Loadable] = field(default_factory=dict, hash=False)

    @property
    def idle(self) -> bool:
        """Return whether the worker has neither rows nor batches."""
        return not self.rows and not self.queued

    def can_serve(self, requests: Iterable[Request]) -> bool:
        """Return whether the engine has every ability that these requests need."""
        return not any(lacking(request.needs, self.lacks) for request in requests)

    def given(self, assignment: "Assignment", now: float) -> "Worker":
        """Return the worker as it will be with this assignment added."""
        if not assignment.joins:
            return replace(self, queued=self.queued + 1, busy_s=self.busy_s + assignment.estimated_s)
        stay = tuple(row for row in self.rows if row.request.id not in assignment.preempts)
        joined = tuple(RunningRow(request, request.generated, now) for request in assignment.requests)
        return replace(self, rows=stay + joined, busy_s=max(self.busy_s, assignment.estimated_s))


@dataclass(frozen=True, slots=True)
class Assignment:
    """Work for one worker: a batch to run for at most `iteration_limit` iterations, or rows to join its running batch.

    If `iteration_limit` is None, the batch runs until every row ends by itself or by its own limit. With `joins` the
    rows enter a running continuous batch and leave one by one. Without `joins` the batch runs to completion, and rows
    that are unfinished at the iteration limit come back through `add`.
    """

    worker: str
    requests: tuple[Request, ...]
    iteration_limit: int | None = None
    joins: bool = False
    sealed: bool = False  # whether it is a half of a batch that ran out of memory, which no request may join
    estimated_s: float = 0.0
    preempts: tuple[str, ...] = ()  # ids of running rows that leave first and come back through `add`
    most_rows: int | None = None  # joiners wait at the worker until there are at most this many rows with them
    loads: str | None = None  # the model to change to; an assignment that has one has no requests


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """A waiting batch, for the dashboard and for ETAs; lengths in tokens."""

    requests: tuple[Request, ...]
    length: int
    generation_length: int
    estimated_s: float
    response_ratio: float
    sealed: bool


class Policy(Protocol):
    """The methods of every policy; the module's docstring is the runner's side of the contract.

    `why_first` explains to an operator why the first waiting batch is first. It may contain {ratio}, {waited} and
    {seconds}: that batch's response ratio, and the seconds that it has waited and that it will take.
    """

    mode: Mode = "batch"
    why_first: str = "The policy in force puts it first."

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        ...

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request (cancelled, expired, deleted); return False if it does not wait here."""
        ...

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Decide which waiting requests go to which of these workers now; these requests stop waiting."""
        ...

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Take back requests that did not fit; a request that did not fit alone waits again with its limit reserved.

        Policies whose batches run to completion split the batch into two sealed halves instead (Magnus III-C).
        """
        for request in to_retry(assignment.requests):
            self.add(request, now)

    def wake_at(self, now: float) -> float | None:
        """Return when to call `assign` again even if nothing happens, or None if it need not be called before."""
        return None

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        """Set what recent answers say about predicted lengths and prompts."""
        return None

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the tenants' weights; a tenant that is not named has weight 1."""
        return None

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting requests as batches, in the order in which they would be served now."""
        ...

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        ...


def batch_shape(requests: Sequence[Request], iteration_limit: int | None = None) -> tuple[int, int, int]:
    """Return the size, length and predicted generation length of a batch of at least one request."""
    generation_length = max(request.remaining for request in requests)
    length = max(request.prefill for request in requests)
    return len(requests), length, min(generation_length, iteration_limit or generation_length)


def waiting_batch(
    requests: Sequence[Request],
    costs: ServingTime | None,
    now: float,
    iteration_limit: int | None = None,
    sealed: bool = False,
) -> WaitingBatch:
    """Return the requests as one batch for a worker with these costs; without costs, the batch takes 0 s at ratio 1."""
    size, length, generation_length = batch_shape(requests, iteration_limit)
    estimated_s = costs.serve_s(size, length, generation_length) if costs else 0.0
    waited_s = now - min(request.arrived_at for request in requests)
    ratio = 1 + waited_s / estimated_s if estimated_s else 1.0
    return WaitingBatch(tuple(requests), length, generation_length, estimated_s, ratio, sealed)

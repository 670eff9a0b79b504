"""What a worker says of itself: its facts, which it registers, and its report, which each heartbeat writes.

Both are stored as they are and read whole. A new figure is a field with a default, set where the worker makes the value
and read where it is used. A reader that does not know a field ignores it; if a field is missing, its default is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.costs import LearnedCurves, ServingCurves, WorkerCurves
from scheduling.kv_memory import KvMemory
from scheduling.request import RowLength


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model that a worker can load in place of another: the seconds of a change to it, its memory, its costs."""

    change_s: float
    memory: KvMemory
    costs: ServingCurves


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker registers before it gets its first batch with a model; it does not change until the next model.

    `curves` give the seconds of its prefills and iterations (SCLS Eq. 3-4) until it has learned its own curves.
    `loadable` has the models that it can load, the present one included; it is empty if the model never changes.
    """

    name: str
    model: str
    device: str
    memory: KvMemory
    curves: WorkerCurves | None = None
    lacks: tuple[str, ...] = ()  # names of the abilities that its engine lacks
    adapters: tuple[str, ...] = ()  # names of the adapters that it serves beside its model
    prefix_cache: bool = False  # whether its engine reuses the cached beginning of an earlier prompt
    loadable: Mapping[str, Loadable] = field(default_factory=dict)
    model_changes: int = 0  # the changes of model since its process started
    version: str | None = None  # the version of Magnus that its process runs
    instance: str | None = None  # identifies its process, as host#boot:process id
    # of its model and its adapters, by name: only a worker with the same fingerprint resumes a request's tokens
    fingerprints: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says with each heartbeat; guesses and loops are counted since its process started."""

    max_rows: int | None = None  # the most rows that it takes at once now; None: as many as its memory's `max_rows`
    fault: str | None = None  # why its engine cannot serve now; the worker gets no batch until it can
    curves: LearnedCurves | None = None  # the curves fitted to its own steps, which replace the registered ones
    # Predictions for running rows, by the request's id, which are better than those made when the requests arrived.
    row_lengths: Mapping[str, RowLength] = field(default_factory=dict)
    shared_tokens: int = 0  # the tokens that its running rows share now, each of which its memory holds once
    guessed_tokens: int = 0  # the tokens that its engine has guessed and verified
    right_guesses: int = 0  # the guessed tokens that were right
    stopped_loops: int = 0  # the rows that its engine ended because they repeated themselves
    saved_tokens: int = 0  # the tokens that those rows had left to their limits
    clock_ahead_s: int = 0  # its host's clock minus the database's, in whole seconds, written with its heartbeat


NO_FIGURES = WorkerReport()  # the report of a worker that says only that it lives

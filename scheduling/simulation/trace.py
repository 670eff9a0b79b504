"""The result of a simulation: every answer, every batch, and the figures that the papers report of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduling.simulation.engine_costs import Tokens


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """One answered request; instants in virtual seconds."""

    id: str
    arrived_at: float
    started_at: float
    finished_at: float
    generated: int
    schedules: int  # how often it was assigned
    worker: str

    @property
    def response_s(self) -> float:
        """From arrival to the last token."""
        return self.finished_at - self.arrived_at


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run-to-completion batch, or, with `joined`, one group of rows that joined a continuous batch.

    A group has no iterations and ends when it has joined. Instants in virtual seconds, lengths in tokens.
    """

    worker: str
    ids: tuple[str, ...]
    started_at: float
    ended_at: float
    length: int
    iterations: int
    estimated_s: float
    out_of_memory: bool
    joined: bool


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Seconds from arrival to the last token."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(slots=True)
class Trace:
    """All that happened in one simulation."""

    answers: dict[str, SimulatedAnswer] = field(default_factory=dict)
    failed: dict[str, float] = field(default_factory=dict)  # too large for any worker's memory: id -> instant
    batches: list[BatchRun] = field(default_factory=list)
    tokens: Tokens = field(default_factory=Tokens)
    busy_s: dict[str, float] = field(default_factory=dict)  # by worker
    completed_at: dict[str, float] = field(default_factory=dict)  # by worker: when its last work ended
    first_arrival_at: float = 0.0
    out_of_memory: int = 0
    preempted: int = 0

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last answer."""
        return max((answer.finished_at for answer in self.answers.values()), default=0.0) - self.first_arrival_at

    @property
    def requests_per_s(self) -> float:
        """Request throughput."""
        return len(self.answers) / self.makespan_s if self.answers else 0.0

    @property
    def valid_tokens_per_s(self) -> float:
        """Throughput of tokens that are part of an answer."""
        return self.tokens.valid / self.makespan_s if self.answers else 0.0

    @property
    def total_tokens_per_s(self) -> float:
        """Token throughput, tokens after the EOS included."""
        return (self.tokens.valid + self.tokens.invalid) / self.makespan_s if self.answers else 0.0

    @property
    def response_s(self) -> ResponseTimes:
        """Mean, percentiles and maximum of the response times."""
        times = np.array([answer.response_s for answer in self.answers.values()] or [0.0])
        p50, p95, p99 = np.percentile(times, [50, 95, 99])
        return ResponseTimes(float(times.mean()), float(p50), float(p95), float(p99), float(times.max()))

    @property
    def batch_size_mean(self) -> float:
        """Mean size of the run-to-completion batches; of continuous ones the mean rows of an iteration."""
        sizes = [len(batch.ids) for batch in self.batches if not batch.joined]
        if sizes:
            return float(np.mean(sizes))
        return self.tokens.row_iterations / self.tokens.iterations if self.tokens.iterations else 0.0

    @property
    def wasted_share(self) -> float:
        """Share of reads of cached tokens that added nothing to an answer (Eq. 2-4, over all rows)."""
        return 1 - self.tokens.useful_reads / self.tokens.reads if self.tokens.reads else 0.0

    @property
    def load_imbalance_s(self) -> float:
        """Standard deviation of the workers' completion times (SCLS 5.3)."""
        return float(np.std(list(self.completed_at.values()) or [0.0]))

    def early_returns(self, slice_tokens: int) -> float:
        """Share of batches that ended before their slice was over (SCLS 5.2)."""
        runs: Sequence[BatchRun] = [batch for batch in self.batches if not batch.out_of_memory]
        return sum(batch.iterations < slice_tokens for batch in runs) / len(runs) if runs else 0.0

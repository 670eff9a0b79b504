"""The durations of a simulated engine and the tokens that it computes; also runs its run-to-completion batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduling.costs import ServingCurves
from scheduling.request import Request


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """A simulated engine's curves of prefill and decoding, and its other costs; durations in seconds.

    Raises ValueError if a curve falls, or if an iteration takes no time.
    """

    curves: ServingCurves
    join_s: float = 0.0  # the time that a join of rows to a running continuous batch takes beside the prefill
    # The tokens of a chunk of the joiners' prefill; None: the whole prefill stalls the running rows.
    chunk_tokens: int | None = None
    out_of_memory_s: float = 0.0  # the time to empty the memory and load the model again
    headroom: float = 0.0  # the memory beyond Θ as a share of Θ: Magnus keeps 30 % of the memory for fragmentation
    jitter: float = 0.0  # the relative standard deviation of durations
    # By application, the tokens with which all its prompts begin. The engine computes them once while it has memory for
    # them beside its rows, and paged memory holds them once. If this is empty, the engine has no prefix cache.
    shared_tokens: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if min(*self.curves.prefill, *self.curves.decode) < 0 or not self.curves.decode_step_s(1, 1):
            raise ValueError(
                f"a simulated engine's curves must not fall and an iteration takes time, got {self.curves}"
            )

    def faster(self, speed: float) -> "EngineCosts":
        """Return the same engine on a worker that is `speed` times as fast."""
        return replace(
            self,
            curves=ServingCurves.from_coefficients(self.curves.coefficients / speed),
            join_s=self.join_s / speed,
            out_of_memory_s=self.out_of_memory_s / speed,
        )


@dataclass(slots=True)
class Tokens:
    """Computed tokens by use, and reads of cached tokens: all reads, and the useful reads (Magnus Eq. 2-4)."""

    valid: int = 0
    invalid: int = 0
    pad: int = 0
    reads: int = 0
    useful_reads: int = 0
    iterations: int = 0
    row_iterations: int = 0

    def __iadd__(self, other: "Tokens") -> "Tokens":
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


def reads(length: int, iterations: int) -> int:
    """Return the cached tokens that a row of this length reads in `iterations` iterations."""
    return iterations * length + iterations * (iterations + 1) // 2


@dataclass(frozen=True, slots=True)
class StaticRun:
    """The run of a batch, over `iterations` until it ends or, if it runs `out_of_memory`, until memory is full."""

    duration_s: float
    length: int
    iterations: int
    generated: tuple[int, ...]  # the valid tokens of each request in this run
    out_of_memory: bool
    tokens: Tokens


def run_static(
    requests: Sequence[Request],
    totals: Sequence[int],
    iteration_limit: int | None,
    capacity_tokens: int,
    costs: EngineCosts,
) -> StaticRun:
    """Run a batch of requests with these true generation lengths; finished rows wait for the longest (Magnus II-D)."""
    size = len(requests)
    length = max(request.prefill for request in requests)
    remaining = [total - request.generated for request, total in zip(requests, totals, strict=True)]
    iterations = min(max(remaining), iteration_limit or max(remaining))
    most = max(0, capacity_tokens // size - length)  # the iterations until memory is full
    out_of_memory = iterations > most
    iterations = min(iterations, most)
    duration_s = costs.curves.serve_s(size, length, iterations)
    if out_of_memory:
        duration_s += costs.out_of_memory_s
    generated = tuple(min(tokens, iterations) for tokens in remaining)
    valid = 0 if out_of_memory else sum(generated)
    tokens = Tokens(
        valid=valid,
        invalid=size * iterations - valid,
        pad=sum(length - request.prefill for request in requests),
        reads=size * reads(length, iterations),
        useful_reads=0 if out_of_memory else sum(map(reads, (r.prefill for r in requests), generated)),
        iterations=iterations,
        row_iterations=size * iterations,
    )
    return StaticRun(duration_s, length, iterations, generated, out_of_memory, tokens)

"""A run-to-completion batch on a simulated engine: padded to the longest prompt, run to the longest answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts, Tokens, reads


@dataclass(frozen=True, slots=True)
class StaticRun:
    """What a batch takes: `iterations` until it ends or, with `out_of_memory`, until memory is full."""

    duration_s: float
    length: int
    iterations: int
    generated: tuple[int, ...]  # valid tokens of each request in this run
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
    most = max(0, capacity_tokens // size - length)  # iterations that memory holds
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

"""Shapes and estimated serving times of batches, for assignments, the dashboard and ETAs."""

from collections.abc import Sequence

from scheduling.costs import ServingTime
from scheduling.policy import WaitingBatch
from scheduling.request import Request


def batch_shape(requests: Sequence[Request], iteration_limit: int | None = None) -> tuple[int, int, int]:
    """Batch size, batch length and predicted batch generation length, both in tokens; at least one request."""
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
    """These requests as one batch on a worker of such costs; without costs its estimate is 0 s and its ratio 1."""
    size, length, generation_length = batch_shape(requests, iteration_limit)
    estimated_s = costs.serve_s(size, length, generation_length) if costs else 0.0
    waited_s = now - min(request.arrived_at for request in requests)
    ratio = 1 + waited_s / estimated_s if estimated_s else 1.0
    return WaitingBatch(tuple(requests), length, generation_length, estimated_s, ratio, sealed)

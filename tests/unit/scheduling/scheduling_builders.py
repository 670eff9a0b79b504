"""Requests, workers and fleets for the tests of scheduling, in as few words as a test wants to say."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings

from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment, Policy, RunningRow, Worker
from scheduling.request import Request, ServiceTier
from scheduling.simulation.simulator import Arrival

# Prefill takes 1 ms a row and token; an iteration takes 100 ms, whatever the batch: easy to add up in one's head.
FLAT = ServingCurves(prefill=(0.001, 0.0, 0.0, 0.0), decode=(0.0, 0.0, 0.0, 0.1))
# The V100 of `benchmarks.published_costs`, where size and length count.
SLOPED = ServingCurves(prefill=(2e-4, 0.0, 0.0, 0.0436), decode=(3e-6, 8e-4, 0.0, 0.0436))


def a_request(
    id: str = "r",
    at: float = 0.0,
    length: int = 10,
    predicted: int = 10,
    upper: int | None = None,
    limit: int = 1024,
    generated: int = 0,
    tier: ServiceTier = "default",
    priority: int = 0,
    tenant: str = "",
    deadline_at: float | None = None,
    job: str = "",
    model: str = "",
) -> Request:
    most = predicted if upper is None else upper
    return Request(
        id, at, length, limit, predicted, most, generated, tier, priority, tenant, deadline_at, job=job, model=model
    )


def a_line(id: str, predicted: int = 10, at: float = 0.0, tenant: str = "a", **fields: Any) -> Request:
    """A line of a bulk job."""
    return a_request(id, at, predicted=predicted, tier="flex", tenant=tenant, **fields)


def a_job(tenant: str, count: int, at: float = 0.0, seed: int = 1) -> list[Arrival]:
    """Lines of mixed lengths that come together."""
    lengths = [5 + 97 * (n + seed) % 400 for n in range(count)]
    return [
        Arrival(a_line(f"{tenant}{n:04}", length, at, tenant=tenant, job=f"job of {tenant}"), length)
        for n, length in enumerate(lengths)
    ]


def a_row(id: str = "row", length: int = 10, generated: int = 1, predicted: int = 10, **fields: Any) -> RunningRow:
    return RunningRow(a_request(id, length=length, predicted=predicted, **fields), generated, 0.0)


def a_memory(tokens: int) -> KvMemory:
    return KvMemory(theta_bytes=tokens, delta_bytes=1)


def a_worker(
    name: str = "w",
    tokens: int = 10_000,
    costs: ServingCurves = FLAT,
    busy: bool = False,
    rows: Sequence[RunningRow] = (),
) -> Worker:
    return Worker(name, a_memory(tokens), costs, tuple(rows), queued=int(busy))


def a_paged_worker(
    tokens: int = 10_000,
    rows: Sequence[RunningRow] = (),
    block_tokens: int = 1,
    max_rows: int | None = None,
    costs: ServingCurves = FLAT,
    name: str = "w",
) -> Worker:
    return Worker(name, KvMemory(tokens, 1, True, block_tokens, max_rows), costs, tuple(rows))


def ids(assignments: Sequence[Assignment]) -> dict[str, list[list[str]]]:
    """The ids of each worker's batches."""
    batches: dict[str, list[list[str]]] = {}
    for assignment in assignments:
        batches.setdefault(assignment.worker, []).append([request.id for request in assignment.requests])
    return batches


def add_all(policy: Policy, requests: Sequence[Request]) -> None:
    for request in requests:
        policy.add(request, request.arrived_at)


def examples(count: int) -> settings:
    """Settings for `count` random examples; no deadline, since a busy machine is not a slow function."""
    return settings(max_examples=count, deadline=None)

"""The queue as clients and the dashboard see it: batches in serving order, with the seconds until each should start."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from scheduling.adaptive_batching import wasted_memory_access
from scheduling.policy import Policy, WaitingBatch, Worker
from tasks.planning.forecasts import QueueFront

# The snapshot names this many requests at the front of the queue and this many batches; of all others a client learns
# how many are ahead. More costs the planner time: describing the front of 100,000 requests takes 3 to 18 ms,
# depending on the policy (docs/results/control-plane.md). Not tuned otherwise.
MOST_IDS = 1000
MOST_BATCHES = 200


def describe_queues(
    policies: Iterable[tuple[str, Policy]], workers: Mapping[str, Sequence[Worker]], now: float
) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """The queue of each model described, and the longest time that one of them takes."""
    described = {
        model: describe_queue(policy.waiting(now), len(policy), workers.get(model, ())) for model, policy in policies
    }
    batches = {model: of_model for model, (of_model, _) in described.items()}
    return batches, max((behind_s for _, behind_s in described.values()), default=0.0)


def describe_queue(
    waiting: Iterable[WaitingBatch], total: int, workers: Sequence[Worker]
) -> tuple[list[dict[str, Any]], float]:
    """The first waiting batches described, and the seconds until a request behind all `total` requests could start.

    Each batch in turn starts on the worker that is free first, as if nothing else arrived. The requests that are not
    described are assumed to need as many seconds each as those that are.
    """
    free_s = [worker.busy_s for worker in workers] or [0.0]
    heapq.heapify(free_s)
    described: list[dict[str, Any]] = []
    listed, work_s = 0, 0.0
    for batch in islice(waiting, MOST_BATCHES):
        starts_in_s = heapq.heappop(free_s)
        heapq.heappush(free_s, starts_in_s + batch.estimated_s)
        described.append(
            {
                "ids": [request.id for request in batch.requests[: MOST_IDS - listed]],
                "size": len(batch.requests),
                "length": batch.length,
                "generation_length": batch.generation_length,
                "estimated_s": round(batch.estimated_s, 4),
                "response_ratio": round(batch.response_ratio, 3),
                "sealed": batch.sealed,
                "starts_in_s": round(starts_in_s, 4),
                **costs_of(batch, workers),
            }
        )
        listed += len(batch.requests)
        work_s += batch.estimated_s
        if listed >= MOST_IDS:
            break
    unlisted_s = work_s / listed * (total - listed) / len(free_s) if listed else 0.0
    return described, free_s[0] + unlisted_s


def front_of(described: Iterable[Mapping[str, Any]], total: int) -> QueueFront:
    """The ids of a queue that was described, of so many requests."""
    return QueueFront([one for batch in described for one in batch["ids"]], total)


def costs_of(batch: WaitingBatch, workers: Sequence[Worker]) -> dict[str, float]:
    """Wasted memory access of a batch (Magnus Eq. 4, tokens), and the share of a worker's Θ that it may fill."""
    some = batch.requests[:MOST_IDS]
    costs: dict[str, float] = {"wasted": wasted_memory_access([(one.prefill, one.remaining) for one in some])}
    if workers:
        memory, tokens = workers[0].memory, batch.length + batch.generation_length
        total = sum(one.prefill + one.remaining for one in some)
        share = memory.rows_tokens(len(batch.requests), tokens, total) / max(1, memory.capacity_tokens)
        costs["memory_share"] = round(share, 4)
    return costs

"""Describes the queue for clients and the dashboard: batches in serving order, with the seconds until they start."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from models.planning.queue_snapshot import BatchInQueue
from scheduling.adaptive_batching import wasted_memory_access
from scheduling.policy import Policy, WaitingBatch, Worker

# The snapshot names this many requests at the front of the queue and this many batches; others have no position. More
# would cost the planner time: describing the front of 100,000 requests takes 3 to 18 ms, depending on the policy
# (docs/results/control-plane.md). Not tuned otherwise.
MOST_IDS = 1000
MOST_BATCHES = 200


def describe_queues(
    policies: Iterable[tuple[str, Policy]], workers: Mapping[str, Sequence[Worker]], now: float
) -> tuple[dict[str, list[BatchInQueue]], float]:
    """Returns the description of each model's queue, and the longest wait in seconds behind any of these queues."""
    described = {
        model: describe_queue(policy.waiting(now), len(policy), workers.get(model, ())) for model, policy in policies
    }
    batches = {model: of_model for model, (of_model, _) in described.items()}
    return batches, max((behind_s for _, behind_s in described.values()), default=0.0)


def describe_queue(
    waiting: Iterable[WaitingBatch], total: int, workers: Sequence[Worker]
) -> tuple[list[BatchInQueue], float]:
    """Describes the first waiting batches; also returns the seconds until a request behind all `total` could start.

    A batch starts on the worker that is free first; further requests take as long as the described ones on average.
    """
    free_s = [worker.busy_s for worker in workers] or [0.0]
    heapq.heapify(free_s)
    described: list[BatchInQueue] = []
    listed, work_s = 0, 0.0
    for batch in islice(waiting, MOST_BATCHES):
        starts_in_s = heapq.heappop(free_s)
        heapq.heappush(free_s, starts_in_s + batch.estimated_s)
        described.append(
            BatchInQueue(
                ids=tuple(request.id for request in batch.requests[: MOST_IDS - listed]),
                size=len(batch.requests),
                length=batch.length,
                generation_length=batch.generation_length,
                estimated_s=round(batch.estimated_s, 4),
                response_ratio=round(batch.response_ratio, 3),
                sealed=batch.sealed,
                starts_in_s=round(starts_in_s, 4),
                wasted=wasted_memory_access([(one.prefill, one.remaining) for one in batch.requests[:MOST_IDS]]),
                memory_share=_memory_share(batch, workers),
            )
        )
        listed += len(batch.requests)
        work_s += batch.estimated_s
        if listed >= MOST_IDS:
            break
    unlisted_s = work_s / listed * (total - listed) / len(free_s) if listed else 0.0
    return described, free_s[0] + unlisted_s


def _memory_share(batch: WaitingBatch, workers: Sequence[Worker]) -> float | None:
    """Returns the share of the first worker's memory Θ that a batch may fill, or None without a worker."""
    if not workers:
        return None
    memory, tokens = workers[0].memory, batch.length + batch.generation_length
    total = sum(one.prefill + one.remaining for one in batch.requests[:MOST_IDS])
    return round(memory.rows_tokens(len(batch.requests), tokens, total) / max(1, memory.capacity_tokens), 4)

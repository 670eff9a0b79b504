"""The waiting room as the web shows it: batches in serving order with the seconds until each should start."""

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from scheduling.policy import WaitingBatch, Worker

MOST_IDS = 1000  # the snapshot names the requests at the front; the others know how many are ahead of them
MOST_BATCHES = 200


def describe_queue(
    waiting: Iterable[WaitingBatch], total: int, workers: Sequence[Worker]
) -> tuple[list[dict[str, Any]], float]:
    """The first batches described, and the seconds until a request behind all `total` waiting ones could start.

    Each batch in turn starts on the worker that is free first, as if nothing else arrived. What is not described is
    taken to need as long a request as what is.
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
            }
        )
        listed += len(batch.requests)
        work_s += batch.estimated_s
        if listed >= MOST_IDS:
            break
    unlisted_s = work_s / listed * (total - listed) / len(free_s) if listed else 0.0
    return described, free_s[0] + unlisted_s

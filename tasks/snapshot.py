"""The waiting room as the web shows it: batches in serving order with the seconds until each should start."""

import heapq
from collections.abc import Sequence
from typing import Any

from scheduling.policy import WaitingBatch, Worker

MOST_IDS = 1000  # the snapshot names the requests at the front; the others know how many are ahead of them
MOST_BATCHES = 200


def waiting_room(waiting: Sequence[WaitingBatch], workers: Sequence[Worker]) -> tuple[list[dict[str, Any]], float]:
    """The first batches described, and the seconds until a request behind all that waits could start.

    Each batch in turn starts on the worker that is free first, as if nothing else arrived.
    """
    free_s = [worker.busy_s for worker in workers] or [0.0]
    heapq.heapify(free_s)
    described: list[dict[str, Any]] = []
    ids_left = MOST_IDS
    for batch in waiting:
        starts_in_s = heapq.heappop(free_s)
        heapq.heappush(free_s, starts_in_s + batch.estimated_s)
        if len(described) < MOST_BATCHES and ids_left > 0:
            described.append(
                {
                    "ids": [request.id for request in batch.requests[:ids_left]],
                    "size": len(batch.requests),
                    "length": batch.length,
                    "generation_length": batch.generation_length,
                    "estimated_s": round(batch.estimated_s, 4),
                    "response_ratio": round(batch.response_ratio, 3),
                    "sealed": batch.sealed,
                    "starts_in_s": round(starts_in_s, 4),
                }
            )
            ids_left -= len(batch.requests)
    return described, free_s[0]

"""Finds queued requests that make a policy fail, so that one request does not stop all planning."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from models.planning.planner_requests import QueuedRequest
from scheduling.policies.policy_factory import PolicySettings
from scheduling.policy import Worker
from tasks.planning.policies_by_model import PoliciesByModel
from tasks.planning.queue_description import MOST_BATCHES


def culprits(
    policy: str,
    settings: PolicySettings,
    queued: Sequence[QueuedRequest],
    workers: Mapping[str, Sequence[Worker]],
    now: float,
) -> list[QueuedRequest]:
    """Returns the requests with which a fresh policy fails even alone, found by bisection; empty if only several do."""
    if not fails(policy, settings, queued, workers, now):
        return []
    if len(queued) == 1:
        return list(queued)
    middle = len(queued) // 2
    return [
        culprit
        for half in (queued[:middle], queued[middle:])
        for culprit in culprits(policy, settings, half, workers, now)
    ]


def fails(
    policy: str,
    settings: PolicySettings,
    queued: Iterable[QueuedRequest],
    workers: Mapping[str, Sequence[Worker]],
    now: float,
) -> bool:
    """Whether a fresh policy raises anything when it is given these requests and asked for work for these workers."""
    policies = PoliciesByModel(policy, settings)
    try:
        policies.feed(queued, now)
        for model, one in policies:
            one.assign(workers.get(model, ()), now)
            list(islice(one.waiting(now), MOST_BATCHES))
    except Exception:  # any error counts as a failure
        return True
    return False

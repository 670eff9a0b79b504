"""Keeps an object of the policy in force for each model, and finds the requests that make it fail. Does no I/O."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from types import MappingProxyType

from models.planning.planner_requests import QueuedRequest
from scheduling.policy import Assignment, Worker
from scheduling.request import Request, lacking, reserve_limit
from scheduling.sharing.isolation import IsolatingPolicy
from scheduling.sharing.model_changes import ModelChanges
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from tasks.planning.queue_description import MOST_BATCHES


class PoliciesByModel(ModelChanges):
    """The policies by the model whose requests they queue; iterates over (model, policy); `len` counts requests."""

    def __init__(
        self,
        policy: str,
        settings: PolicySettings,
        differing_abilities: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        """Makes the policies as requests come; raises UnknownPolicy.

        `differing_abilities` has, by model, the abilities that some of its workers have and others lack. Only these
        matter for the choice of a worker: a need that no worker meets is refused by whichever worker gets the request.
        """
        super().__init__(partial(make_policy, policy, settings))
        self.policy, self.differing_abilities = policy, differing_abilities

    def __iter__(self) -> Iterator[tuple[str, IsolatingPolicy]]:
        return iter(self.policies.items())

    def feed(self, queued: Iterable[QueuedRequest], now: float) -> None:
        """Adds requests; a request that was predicted again while it waited replaces the earlier one of the same id.

        The requests of one batch that failed or ran out of memory are handed to the policy together, to be split.
        """
        sealed: dict[tuple[str, str], list[Request]] = defaultdict(list)
        suspects: dict[tuple[str, str], list[Request]] = defaultdict(list)
        for one in queued:
            self.discard(one.request.id)  # from every model's queue, because an operator may have moved the request
            request = self._with_needs_that_count(one)
            if one.suspect_group is not None:
                suspects[one.model, one.suspect_group].append(request)
            elif one.sealed_group is not None:
                sealed[one.model, one.sealed_group].append(request)
            else:
                self.add(request, now)
        for requests in suspects.values():
            self.isolate(requests)
        for requests in sealed.values():
            if len(requests) == 1:  # the others of its batch were cancelled
                self.add(reserve_limit(requests[0]), now)
            else:
                self.out_of_memory(Assignment(worker="", requests=tuple(requests)), now)

    def _with_needs_that_count(self, one: QueuedRequest) -> Request:
        needs = frozenset(lacking(one.request.needs, self.differing_abilities.get(one.model, ())))
        return one.request if needs == one.request.needs else replace(one.request, needs=needs)

    def discard_all(self, request_ids: Iterable[str]) -> None:
        """Removes requests that were cancelled or failed while they waited; ignores unknown ids."""
        for request_id in request_ids:
            self.discard(request_id)

    def due_in_s(self, now: float) -> float | None:
        """Returns the seconds until a policy wants to be asked again even if nothing happens; None if none wants to."""
        at = self.wake_at(now)
        return None if at is None else max(0.0, at - now)


def failing_requests(
    fails: Callable[[Sequence[QueuedRequest]], bool], queued: Sequence[QueuedRequest]
) -> list[QueuedRequest]:
    """Returns the requests with which a fresh policy `fails` even if no other request waits.

    Finds them by halving the queue. The list is empty if the policy fails only with several requests together.
    """
    if not fails(queued):
        return []
    if len(queued) == 1:
        return [*queued]
    middle = len(queued) // 2
    return failing_requests(fails, queued[:middle]) + failing_requests(fails, queued[middle:])


def policy_fails(
    policy: str,
    settings: PolicySettings,
    workers: Mapping[str, Sequence[Worker]],
    now: float,
    queued: Iterable[QueuedRequest],
) -> bool:
    """Returns whether a fresh policy raises any error when it gets these requests and assigns them to these workers."""
    policies = PoliciesByModel(policy, settings)
    try:
        policies.feed(queued, now)
        policies.assign([*chain.from_iterable(workers.values())], now)
        for _, one in policies:
            list(islice(one.waiting(now), MOST_BATCHES))
    except Exception:  # any error counts, because the question is whether there is one
        return True
    return False

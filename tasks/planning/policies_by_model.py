"""One policy object for each model, all of the policy in force, and the requests that make one fail. Does no I/O."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from types import MappingProxyType

from models.planning.planner_requests import QueuedRequest
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policies.wrapping.isolation import IsolatingPolicy
from scheduling.policies.wrapping.model_changes import ModelChanges
from scheduling.policy import Assignment, Worker
from scheduling.request import Request, lacking, reserve_limit
from tasks.planning.queue_description import MOST_BATCHES


class PoliciesByModel:
    """Policies by the model whose requests they queue; iterates over (model, policy); its length counts requests."""

    def __init__(
        self,
        policy: str,
        settings: PolicySettings,
        differing_abilities: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        """Makes the policies as requests come; raises UnknownPolicy.

        `differing_abilities` has, by model, the abilities of some of its workers that others lack. Only these matter
        for the choice of a worker: a need that no worker meets is refused by whichever worker gets the request.
        """
        self._all = ModelChanges(partial(make_policy, policy, settings))
        self.continuous = self._all.mode == "continuous"  # rows join and leave
        self.policy, self.differing_abilities = policy, differing_abilities

    def __iter__(self) -> Iterator[tuple[str, IsolatingPolicy]]:
        return iter(self._all.by_model.items())

    def __len__(self) -> int:
        return len(self._all)

    def policy_for(self, model: str) -> IsolatingPolicy:
        """Returns the policy of a model; makes it at the first call."""
        return self._all.policy_for(model)

    def feed(self, queued: Iterable[QueuedRequest], now: float) -> None:
        """Adds requests; one that was predicted again while it waited replaces the earlier one with its id.

        Those of one batch that failed or ran out of memory are handed over together, to be split.
        """
        sealed: dict[tuple[str, str], list[Request]] = defaultdict(list)
        suspects: dict[tuple[str, str], list[Request]] = defaultdict(list)
        for one in queued:
            self.discard([one.request.id])  # from every model's queue: an operator may have moved it
            request = self._with_needs_that_count(one)
            if one.suspect_group is not None:
                suspects[one.model, one.suspect_group].append(request)
            elif one.sealed_group is not None:
                sealed[one.model, one.sealed_group].append(request)
            else:
                self._all.add(request, now)
        for requests in suspects.values():
            self._all.isolate(requests)
        for requests in sealed.values():
            if len(requests) == 1:  # a joiner that did not fit beside the running rows
                self._all.add(reserve_limit(requests[0]), now)
            else:
                self._all.out_of_memory(Assignment(worker="", requests=tuple(requests)), now)

    def _with_needs_that_count(self, one: QueuedRequest) -> Request:
        needs = frozenset(lacking(one.request.needs, self.differing_abilities.get(one.model, ())))
        return one.request if needs == one.request.needs else replace(one.request, needs=needs)

    def discard(self, request_ids: Iterable[str]) -> None:
        """Removes requests that were cancelled or failed while they waited; ignores unknown ids."""
        for request_id in request_ids:
            self._all.discard(request_id)

    def assign(self, workers: Mapping[str, Sequence[Worker]], now: float) -> list[Assignment]:
        """Decides which requests go to which workers, given by model, and which workers change their model."""
        return self._all.assign([*chain.from_iterable(workers.values())], now)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Gives every policy Kendall's tau: how well recent predictions ranked the answers."""
        self._all.set_rank_correlation(tau)

    @property
    def weights(self) -> Mapping[str, float]:
        """The tenants' weights."""
        return self._all.weights

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Gives every policy the tenants' weights."""
        self._all.set_weights(weights)

    def due_in_s(self, now: float) -> float | None:
        """Returns the seconds until a policy wants to be asked again even if nothing happens; None if none wants to."""
        at = self._all.wake_at(now)
        return None if at is None else max(0.0, at - now)


def failing_requests(
    policy: str,
    settings: PolicySettings,
    queued: Sequence[QueuedRequest],
    workers: Mapping[str, Sequence[Worker]],
    now: float,
) -> list[QueuedRequest]:
    """Returns the requests with which a fresh policy fails even if no other request waits.

    They are found by halving the queue. The list is empty if the policy fails only with several requests together.
    """
    if not policy_fails(policy, settings, queued, workers, now):
        return []
    if len(queued) == 1:
        return list(queued)
    middle = len(queued) // 2
    return [
        failing
        for half in (queued[:middle], queued[middle:])
        for failing in failing_requests(policy, settings, half, workers, now)
    ]


def policy_fails(
    policy: str,
    settings: PolicySettings,
    queued: Iterable[QueuedRequest],
    workers: Mapping[str, Sequence[Worker]],
    now: float,
) -> bool:
    """Returns whether a fresh policy raises any error when it gets these requests and assigns them to these workers."""
    policies = PoliciesByModel(policy, settings)
    try:
        policies.feed(queued, now)
        policies.assign(workers, now)
        for _, one in policies:
            list(islice(one.waiting(now), MOST_BATCHES))
    except Exception:  # any error: whether there is one is the question
        return True
    return False

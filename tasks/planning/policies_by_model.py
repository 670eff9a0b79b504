"""One policy object for each model, all of the policy in force, and the requests that make one fail. Does no I/O."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from models.planning.planner_requests import QueuedRequest
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policies.wrapping.isolation import IsolatingPolicy
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

        `differing_abilities` has by model what some of its workers can do and others cannot. Abilities that all workers
        have need no choice, and a need that no worker meets is refused by whichever worker gets the request.
        """
        self.continuous = make_policy(policy, settings).mode == "continuous"  # rows join and leave
        self.policy, self.differing_abilities, self._settings = policy, differing_abilities, settings
        self._by_model: dict[str, IsolatingPolicy] = {}
        self._tau: float | None = None
        self.weights: Mapping[str, float] = {}  # tenants' weights

    def __iter__(self) -> Iterator[tuple[str, IsolatingPolicy]]:
        return iter(self._by_model.items())

    def __len__(self) -> int:
        return sum(len(policy) for policy in self._by_model.values())

    def policy_for(self, model: str) -> IsolatingPolicy:
        """Returns the policy of a model; makes it at the first call."""
        if model not in self._by_model:
            self._by_model[model] = make_policy(self.policy, self._settings)
            self._by_model[model].set_rank_correlation(self._tau)
            self._by_model[model].set_weights(self.weights)
        return self._by_model[model]

    def feed(self, queued: Iterable[QueuedRequest], now: float) -> None:
        """Adds requests; one that was predicted again while it waited replaces the earlier one with its id.

        The remaining requests of a batch that ran out of memory are handed over together, to be split, and so are those
        that were served together when an engine failed.
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
                self.policy_for(one.model).add(request, now)
        for (model, _), requests in suspects.items():
            self.policy_for(model).isolate(requests)
        for (model, _), requests in sealed.items():
            if len(requests) == 1:  # a joiner that did not fit beside the running rows
                self.policy_for(model).add(reserve_limit(requests[0]), now)
            else:
                self.policy_for(model).out_of_memory(Assignment(worker="", requests=tuple(requests)), now)

    def _with_needs_that_count(self, one: QueuedRequest) -> Request:
        needs = frozenset(lacking(one.request.needs, self.differing_abilities.get(one.model, ())))
        return one.request if needs == one.request.needs else replace(one.request, needs=needs)

    def discard(self, request_ids: Iterable[str]) -> None:
        """Removes requests that were cancelled or failed while they waited; ignores unknown ids."""
        for request_id in request_ids:
            for policy in self._by_model.values():
                policy.discard(request_id)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Gives every policy Kendall's tau: how well recent predictions ranked the answers."""
        if tau != self._tau:
            self._tau = tau
            for policy in self._by_model.values():
                policy.set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Gives every policy the tenants' weights."""
        if weights != self.weights:
            self.weights = weights
            for policy in self._by_model.values():
                policy.set_weights(weights)

    def due_in_s(self, now: float) -> float | None:
        """Returns the seconds until a policy wants to be asked again even if nothing happens; None if none wants to."""
        instants = [at for policy in self._by_model.values() if (at := policy.wake_at(now)) is not None]
        return max(0.0, min(instants) - now) if instants else None


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
        for model, one in policies:
            one.assign(workers.get(model, ()), now)
            list(islice(one.waiting(now), MOST_BATCHES))
    except Exception:  # any error: whether there is one is the question
        return True
    return False

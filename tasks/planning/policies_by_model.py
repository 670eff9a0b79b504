"""One object of the policy in force for each model, with its queued requests. No queries, no clock."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from models.planning.planner_requests import QueuedRequest
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policies.wrapping.isolation import IsolatingPolicy
from scheduling.policy import Assignment
from scheduling.request import Request, lacking, reserve_limit


class PoliciesByModel:
    """Policies by the model whose requests they queue; iterates over (model, policy); its length counts requests."""

    def __init__(
        self, policy: str, settings: PolicySettings, uneven: Mapping[str, frozenset[str]] = MappingProxyType({})
    ) -> None:
        """Begins without requests; raises UnknownPolicy.

        `uneven` has, by model, the abilities that only some of its workers have. Needs that all workers meet restrict
        no choice, and needs that none meets are refused by the worker that gets the request.
        """
        self.continuous = make_policy(policy, settings).mode == "continuous"  # rows join and leave
        self.policy, self.uneven, self._settings = policy, uneven, settings
        self._by_model: dict[str, IsolatingPolicy] = {}
        self._tau: float | None = None
        self.weights: Mapping[str, float] = {}  # of tenants

    def __iter__(self) -> Iterator[tuple[str, IsolatingPolicy]]:
        return iter(self._by_model.items())

    def __len__(self) -> int:
        return sum(len(policy) for policy in self._by_model.values())

    def of(self, model: str) -> IsolatingPolicy:
        """Return the policy of a model; the first call makes it."""
        if model not in self._by_model:
            self._by_model[model] = make_policy(self.policy, self._settings)
            self._by_model[model].set_rank_correlation(self._tau)
            self._by_model[model].set_weights(self.weights)
        return self._by_model[model]

    def feed(self, queued: Iterable[QueuedRequest], now: float) -> None:
        """Add requests; replaces waiting requests with the same ids, which have a new prediction.

        The remaining requests of a batch that ran out of memory are passed on together, to be split; so are requests
        that were served together when an engine failed.
        """
        sealed: dict[tuple[str, str], list[Request]] = defaultdict(list)
        suspects: dict[tuple[str, str], list[Request]] = defaultdict(list)
        for one in queued:
            self.of(one.model).discard(one.request.id)
            request = self._with_needs_that_count(one)
            if one.suspect_group is not None:
                suspects[one.model, one.suspect_group].append(request)
            elif one.sealed_group is not None:
                sealed[one.model, one.sealed_group].append(request)
            else:
                self.of(one.model).add(request, now)
        for (model, _), requests in suspects.items():
            self.of(model).isolate(requests)
        for (model, _), requests in sealed.items():
            if len(requests) == 1:  # a joiner that did not fit beside the rows that ran
                self.of(model).add(reserve_limit(requests[0]), now)
            else:
                self.of(model).out_of_memory(Assignment(worker="", requests=tuple(requests)), now)

    def _with_needs_that_count(self, one: QueuedRequest) -> Request:
        needs = frozenset(lacking(one.request.needs, self.uneven.get(one.model, ())))
        return one.request if needs == one.request.needs else replace(one.request, needs=needs)

    def discard(self, request_ids: Iterable[str]) -> None:
        """Take out requests that were cancelled or failed while they waited; unknown ids are ignored."""
        for request_id in request_ids:
            for policy in self._by_model.values():
                policy.discard(request_id)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Tell every policy how well recent predictions ranked the answers (Kendall's tau)."""
        if tau != self._tau:
            self._tau = tau
            for policy in self._by_model.values():
                policy.set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Tell every policy the tenants' weights."""
        if weights != self.weights:
            self.weights = weights
            for policy in self._by_model.values():
                policy.set_weights(weights)

    def due_in_s(self, now: float) -> float | None:
        """Seconds until the first policy wants to be asked again, even if nothing happens; None if none does."""
        instants = [at for policy in self._by_model.values() if (at := policy.wake_at(now)) is not None]
        return max(0.0, min(instants) - now) if instants else None

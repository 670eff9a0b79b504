"""The common base of policies that wrap other policies: by default calls are passed on to the inner policies."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

from scheduling.policy import Policy
from scheduling.rank_correlation import RankCorrelation


class OuterPolicy(Policy, Protocol):
    """A policy that wraps one or several inner policies."""

    def _inner(self) -> Iterable[Policy]:
        """Return the inner policies."""
        ...

    def __len__(self) -> int:
        return sum(map(len, self._inner()))

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        return any(policy.discard(request_id) for policy in self._inner())

    def wake_at(self, now: float) -> float | None:
        """Return when the first of the policies wants to be asked again."""
        instants = (policy.wake_at(now) for policy in self._inner())
        return min((at for at in instants if at is not None), default=None)

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        """Pass on what recent answers say about predictions and prompts."""
        for policy in self._inner():
            policy.set_rank_correlation(rank_correlation)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Pass on the tenants' weights."""
        for policy in self._inner():
            policy.set_weights(weights)


Key = TypeVar("Key", bound=Hashable)
Inner = TypeVar("Inner", bound=Policy)


class PolicyOfEach(OuterPolicy, Protocol[Key, Inner]):
    """One inner policy for each key, all of one kind; one that is made later also gets tau and the weights."""

    policies: dict[Key, Inner]
    weights: Mapping[str, float]  # the tenants' weights
    rank_correlation: RankCorrelation
    _make_policy: Callable[[], Inner]

    def __init__(self, make_policy: Callable[[], Inner]) -> None:
        self._make_policy, self.mode = make_policy, make_policy().mode
        self.policies, self.weights, self.rank_correlation = {}, {}, RankCorrelation()

    def _inner(self) -> Iterable[Inner]:
        return self.policies.values()

    def policy_for(self, key: Key) -> Inner:
        """Return the policy of a key; make it at the first call."""
        if key not in self.policies:
            self.policies[key] = self._make_policy()
            self.policies[key].set_rank_correlation(self.rank_correlation)
            self.policies[key].set_weights(self.weights)
        return self.policies[key]

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        """Pass on what they say, now and to policies that are made later."""
        if rank_correlation != self.rank_correlation:
            self.rank_correlation = rank_correlation
            super().set_rank_correlation(rank_correlation)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Pass on the tenants' weights, now and to policies that are made later."""
        if weights != self.weights:
            self.weights = weights
            super().set_weights(weights)

"""The common base of policies that wrap others: passes all other calls on to the inner policies."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from scheduling.policy import Policy


class WrappingPolicy(Policy, Protocol):
    """A policy round one or several inner policies."""

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

    def set_rank_correlation(self, tau: float | None) -> None:
        """Pass on Kendall's tau of recent predictions and answers."""
        for policy in self._inner():
            policy.set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Pass on the tenants' weights."""
        for policy in self._inner():
            policy.set_weights(weights)

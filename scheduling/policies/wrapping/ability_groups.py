"""Gives a request only to workers whose engines can do what it needs, whatever the policy.

Among equal ones it goes where its prompt's beginning probably is in the cache (`prefix_holders`).

Requests that need the same have a policy of their own, which sees only the workers that can serve them. While all
workers of a model can do the same, no request needs anything that counts, and there is one policy.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from scheduling.policies.prefix_holders import PrefixHolders
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker
from scheduling.request import Request


class AbilityGroups(Policy):
    """A policy of the same kind for each set of needs; the one that got work longest ago chooses first."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._make_policy, self._holders = make_policy, PrefixHolders()
        self._tau: float | None = None
        self._weights: Mapping[str, float] = {}
        self._groups: dict[frozenset[str], Policy] = {}  # in the order in which they choose
        self.mode = self._of(()).mode

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def _of(self, requests: Iterable[Request]) -> Policy:
        """The policy whose workers can serve all of these."""
        needs = frozenset(chain.from_iterable(request.needs for request in requests))
        if needs not in self._groups:
            self._groups[needs] = self._make_policy()
            self._groups[needs].set_rank_correlation(self._tau)
            self._groups[needs].set_weights(self._weights)
        return self._groups[needs]

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._of((request,)).add(request, now)

    def discard(self, request_id: str) -> bool:
        """Take a waiting request out; False if it does not wait here."""
        return any(policy.discard(request_id) for policy in self._groups.values())

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """What each policy assigns to its workers as they are with what the policies before it have assigned."""
        return list(self._assign({worker.name: worker for worker in workers}, now))

    def _assign(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        for needs, policy in list(self._groups.items()):
            able = [worker for worker in workers.values() if not worker.lacks & needs]
            assignments = self._holders.place(policy.assign(able, now), able) if able else []
            if assignments:
                self._groups[needs] = self._groups.pop(needs)  # it chooses last the next time
            for assignment in assignments:
                workers[assignment.worker] = workers[assignment.worker].given(assignment, now)
                yield assignment

    def finished(self, assignment: Assignment, now: float) -> None:
        """Take note that a run-to-completion batch has ended on its worker."""
        self._of(assignment.requests).finished(assignment, now)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Take back a batch that did not fit."""
        self._of(assignment.requests).out_of_memory(assignment, now)

    def wake_at(self, now: float) -> float | None:
        """When the first policy wants to be asked again."""
        instants = (policy.wake_at(now) for policy in self._groups.values())
        return min((at for at in instants if at is not None), default=None)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Take note of Kendall's tau of recent predictions and answers."""
        self._tau = tau
        for policy in self._groups.values():
            policy.set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Take note of the tenants' weights."""
        self._weights = weights
        for policy in self._groups.values():
            policy.set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """What waits, policy by policy in the order in which they choose."""
        return chain.from_iterable(policy.waiting(now) for policy in self._groups.values())

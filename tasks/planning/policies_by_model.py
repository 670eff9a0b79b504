"""The waiting rooms: one policy object for each model, all of the policy in force. No queries, no clock."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from models.planner_requests import QueuedRequest
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policy import Assignment, Policy
from scheduling.request import Request


class PoliciesByModel:
    """Policies by the model whose requests they hold."""

    def __init__(self, policy: str, settings: PolicySettings) -> None:
        """Empty rooms; raises UnknownPolicy."""
        make_policy(policy, settings)
        self.policy, self._settings = policy, settings
        self._by_model: dict[str, Policy] = {}
        self._tau: float | None = None

    def __iter__(self) -> Iterator[tuple[str, Policy]]:
        return iter(self._by_model.items())

    def __len__(self) -> int:
        return sum(len(policy) for policy in self._by_model.values())

    def of(self, model: str) -> Policy:
        """The room of a model's requests, opened at the first of them."""
        if model not in self._by_model:
            self._by_model[model] = make_policy(self.policy, self._settings)
            self._by_model[model].set_rank_correlation(self._tau)
        return self._by_model[model]

    def feed(self, waiting: Iterable[QueuedRequest], now: float) -> None:
        """Add requests; what is left of a batch that ran out of memory is split as it was."""
        broken: dict[tuple[str, str], list[Request]] = defaultdict(list)
        for one in waiting:
            if one.sealed_group is None:
                self.of(one.model).add(one.request, now)
            else:
                broken[one.model, one.sealed_group].append(one.request)
        for (model, _), requests in broken.items():
            if len(requests) == 1:
                self.of(model).add(requests[0], now)
            else:
                self.of(model).out_of_memory(Assignment(worker="", requests=tuple(requests)), now)

    def discard(self, request_ids: Iterable[str]) -> None:
        """Take out requests that do not wait any more."""
        for request_id in request_ids:
            for policy in self._by_model.values():
                policy.discard(request_id)

    def set_rank_correlation(self, tau: float | None) -> None:
        """Tell every policy how well recent predictions ranked the answers."""
        if tau != self._tau:
            self._tau = tau
            for policy in self._by_model.values():
                policy.set_rank_correlation(tau)

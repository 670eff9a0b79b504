"""Gives requests only to workers whose engines have the needed abilities, under any policy.

Requests with the same needs have their own policy, which sees only the workers that can serve them. While all workers
of a model have the same abilities, there is only one policy.

Where the policy has a free choice between workers, a request goes to one that has served the same beginning of a
prompt: requests of one tenant and application begin alike, with the same instructions, and a server that has them in
its cache need not compute them again. The choice is free between idle workers of at least the same memory and about the
same serving time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from scheduling.policies.wrapping.wrapping_policy import WrappingPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape
from scheduling.request import Request, lacking

Prefix = tuple[str, str]  # tenant, application

MOST_PREFIXES = 64  # latest prefixes remembered for a worker; a server's cache holds fewer long ones. Not tuned
# Largest accepted serving time relative to the chosen worker's; measured costs of equal servers differ by some percent.
AS_LONG = 1.1


class PrefixHolders:
    """The beginnings of prompts that were sent to each worker."""

    def __init__(self) -> None:
        self._held: dict[str, dict[Prefix, None]] = {}  # by worker; the prefix sent last comes last

    def place(self, assignments: Sequence[Assignment], workers: Sequence[Worker]) -> list[Assignment]:
        """Return the assignments, each on its worker or on an equally good one that has seen more of the prefixes."""
        by_name = {worker.name: worker for worker in workers}
        given = {assignment.worker for assignment in assignments}
        free = {worker.name: worker for worker in workers if worker.idle and worker.name not in given}
        placed = []
        for assignment in assignments:
            chosen = by_name[assignment.worker]
            several = sum(other.worker == chosen.name for other in assignments) > 1
            if chosen.idle and chosen.prefix_cache and not several:
                best = self._best(chosen, assignment, list(free.values()))
                if best is not chosen:
                    free[chosen.name] = chosen
                    del free[best.name]
                    assignment = replace(assignment, worker=best.name)
            self._remember(assignment)
            placed.append(assignment)
        return placed

    def _best(self, chosen: Worker, assignment: Assignment, free: Sequence[Worker]) -> Worker:
        """Return the worker that has seen the prefixes of most prompts; among equals the chosen one, else the first."""
        requests = assignment.requests
        equal = [worker for worker in free if _as_good(worker, chosen, requests)]
        return max([chosen, *equal], key=lambda worker: self._holds(worker.name, requests))

    def _holds(self, worker: str, requests: Sequence[Request]) -> int:
        held = self._held.get(worker, {})
        return sum(_prefix(request) in held for request in requests)

    def _remember(self, assignment: Assignment) -> None:
        held = self._held.setdefault(assignment.worker, {})
        for request in assignment.requests:
            held.pop(_prefix(request), None)
            held[_prefix(request)] = None
        for oldest in list(held)[:-MOST_PREFIXES]:
            del held[oldest]


def _prefix(request: Request) -> Prefix:
    return request.tenant, request.application


def _as_good(worker: Worker, chosen: Worker, requests: Sequence[Request]) -> bool:
    """Return whether this idle worker would serve the requests as well as the chosen idle worker."""
    if not worker.prefix_cache or not requests:
        return False
    shape = batch_shape(requests)
    return (
        worker.memory.capacity_tokens >= chosen.memory.capacity_tokens
        and worker.memory.most_rows >= min(chosen.memory.most_rows, len(requests))
        and worker.memory.paged == chosen.memory.paged
        and worker.costs.serve_s(*shape) <= AS_LONG * chosen.costs.serve_s(*shape)
    )


class AbilityGroups(WrappingPolicy):
    """A policy of the same kind for each set of needs; the one whose last assignment is the oldest chooses first."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._make_policy, self._holders = make_policy, PrefixHolders()
        self._tau: float | None = None
        self._weights: Mapping[str, float] = {}
        self._groups: dict[frozenset[str], Policy] = {}  # in the order in which they choose
        self.mode = self._policy_serving(()).mode

    def _inner(self) -> Iterable[Policy]:
        return self._groups.values()

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy whose workers can serve it."""
        self._policy_serving(assignment.requests).out_of_memory(assignment, now)

    def _policy_serving(self, requests: Iterable[Request]) -> Policy:
        """Return the policy whose workers can serve all of these requests."""
        needs = frozenset(chain.from_iterable(request.needs for request in requests))
        if needs not in self._groups:
            self._groups[needs] = self._make_policy()
            self._groups[needs].set_rank_correlation(self._tau)
            self._groups[needs].set_weights(self._weights)
        return self._groups[needs]

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._policy_serving((request,)).add(request, now)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let each policy assign in turn; it sees the workers with the assignments of earlier policies."""
        return list(self._assign({worker.name: worker for worker in workers}, now))

    def _assign(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        for needs, policy in list(self._groups.items()):
            able = [worker for worker in workers.values() if not lacking(needs, worker.lacks)]
            assignments = self._holders.place(policy.assign(able, now), able) if able else []
            if assignments:
                self._groups[needs] = self._groups.pop(needs)  # it chooses last the next time
            for assignment in assignments:
                workers[assignment.worker] = workers[assignment.worker].given(assignment, now)
                yield assignment

    def set_rank_correlation(self, tau: float | None) -> None:
        """Keep Kendall's tau for new groups, too, and pass it on."""
        self._tau = tau
        super().set_rank_correlation(tau)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Keep the weights for new groups, too, and pass them on."""
        self._weights = weights
        super().set_weights(weights)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches of all policies, in the order in which the policies choose."""
        return chain.from_iterable(policy.waiting(now) for policy in self._groups.values())

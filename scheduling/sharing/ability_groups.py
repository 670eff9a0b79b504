"""Gives requests only to workers whose engines have the needed abilities, under any policy.

Requests with the same needs have their own policy, which sees only the workers that can serve them. If all workers of a
model have the same abilities, there is only one policy.

If several workers are equally good, a request goes to one that has served the same beginning of a prompt: requests of
one tenant and application begin with the same instructions, which a server that has them in its cache need not compute
again. An idle worker is as good as the policy's choice if it has at least the same memory and about the same serving
time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from scheduling.outer_policy import PolicyOfEach
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape
from scheduling.request import Request, lacking

Prefix = tuple[str, str]  # tenant, application

MOST_PREFIXES = 64  # the latest prefixes remembered for a worker; a server's cache holds fewer long ones; not tuned
# Serving may take this many times as long as on the chosen worker: measured costs of equal servers differ by some %.
AS_LONG = 1.1


class PrefixHolders:
    """The beginnings of prompts that were sent to each worker."""

    def __init__(self) -> None:
        self._held: dict[str, dict[Prefix, None]] = {}  # the prefixes by worker, the one sent last at the end

    def place(self, assignments: Sequence[Assignment], workers: Sequence[Worker]) -> list[Assignment]:
        """Return the assignments, each for its worker or for an equally good one that has seen more of its prefixes."""
        by_name = {worker.name: worker for worker in workers}
        given = Counter(assignment.worker for assignment in assignments)
        free = {worker.name: worker for worker in workers if worker.idle and worker.name not in given}
        placed = []
        for assignment in assignments:
            chosen = by_name[assignment.worker]
            if chosen.idle and chosen.prefix_cache and given[chosen.name] == 1:
                best = self._best(chosen, assignment, list(free.values()))
                if best is not chosen:
                    free[chosen.name] = chosen
                    del free[best.name]
                    assignment = replace(assignment, worker=best.name)
            self._remember(assignment)
            placed.append(assignment)
        return placed

    def _best(self, chosen: Worker, assignment: Assignment, free: Sequence[Worker]) -> Worker:
        """Return the worker that has seen the prefixes of most of the requests, the chosen one if no other has more."""
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


class AbilityGroups(PolicyOfEach[frozenset[str], Policy]):
    """One policy for each set of needs, all of one kind; the one whose last assignment is the oldest chooses first."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        super().__init__(make_policy)
        self._holders = PrefixHolders()
        self.policy_for(frozenset())  # the policy of requests without needs chooses first

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Gives back a batch that did not fit to the policy whose workers can serve it."""
        self._policy_serving(assignment.requests).out_of_memory(assignment, now)

    def _policy_serving(self, requests: Iterable[Request]) -> Policy:
        """Return the policy whose workers can serve all of these requests."""
        return self.policy_for(frozenset(chain.from_iterable(request.needs for request in requests)))

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        self._policy_serving((request,)).add(request, now)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Let each policy assign in turn; each one sees the workers with the assignments of the policies before it."""
        return list(self._assign({worker.name: worker for worker in workers}, now))

    def _assign(self, workers: dict[str, Worker], now: float) -> Iterator[Assignment]:
        for needs, policy in list(self.policies.items()):
            able = [worker for worker in workers.values() if not lacking(needs, worker.lacks)]
            assignments = self._holders.place(policy.assign(able, now), able) if able else []
            if assignments:
                self.policies[needs] = self.policies.pop(needs)  # next time this policy chooses last
            for assignment in assignments:
                workers[assignment.worker] = workers[assignment.worker].given(assignment, now)
                yield assignment

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches of all policies, in the order in which the policies choose."""
        return chain.from_iterable(policy.waiting(now) for policy in self.policies.values())

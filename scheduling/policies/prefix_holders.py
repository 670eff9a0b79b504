"""Moves work to the worker that has served the same beginning of a prompt, where the policy has a free choice.

Requests of one tenant and application begin alike, with the same instructions. A server that has them in its cache need
not compute them again. The choice is free between workers that are idle, hold as much and take as long.
"""

from collections.abc import Sequence
from dataclasses import replace

from scheduling.batch_estimates import batch_shape
from scheduling.policy import Assignment, Worker
from scheduling.request import Request

Prefix = tuple[str, str]  # tenant, application

MOST_PREFIXES = 64  # remembered of a worker, the last ones; more than a server's cache holds of long ones. Not tuned
# Of the serving time on the worker that the policy chose; measured costs of equal servers differ by some percent.
AS_LONG = 1.1


class PrefixHolders:
    """Remembers which prompts' beginnings were sent to which worker."""

    def __init__(self) -> None:
        self._held: dict[str, dict[Prefix, None]] = {}  # by worker; the last sent is last

    def place(self, assignments: Sequence[Assignment], workers: Sequence[Worker]) -> list[Assignment]:
        """The same assignments, each of them with the policy's worker or with one that is as good and holds more."""
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
        """The worker that holds the beginnings of most of these prompts; of equals the chosen one, else the first."""
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
    """Whether it would serve these as the chosen one does; both are idle."""
    if not worker.prefix_cache or not requests:
        return False
    shape = batch_shape(requests)
    return (
        worker.memory.capacity_tokens >= chosen.memory.capacity_tokens
        and worker.memory.most_rows >= min(chosen.memory.most_rows, len(requests))
        and worker.memory.paged == chosen.memory.paged
        and worker.costs.serve_s(*shape) <= AS_LONG * chosen.costs.serve_s(*shape)
    )

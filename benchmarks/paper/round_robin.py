"""The papers' round robin, which only their experiments use: requests or batches go to the workers in turn."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from scheduling.arrival_queue import ArrivalQueue
from scheduling.outer_policy import PolicyOfEach
from scheduling.policies.scls import LeastLoaded, Placement, SliceLevel
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker
from scheduling.request import Request


class DealtInTurn(PolicyOfEach[str, Policy]):
    """One policy for each worker of an unchanging fleet, all of one kind; the policies get requests in turn."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        super().__init__(make_policy)
        self._new = ArrivalQueue()
        self._dealt = 0

    def __len__(self) -> int:
        return super().__len__() + len(self._new)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait until a worker's policy gets it."""
        self._new.add(request)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Give the new requests to the workers' policies in turn; returns the assignments that the policies make."""
        for request in self._new.take(len(self._new)):
            self.policy_for(workers[self._dealt % len(workers)].name).add(request, now)
            self._dealt += 1
        return [one for worker in workers for one in self.policy_for(worker.name).assign([worker], now)]

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to its worker's policy."""
        self.policy_for(assignment.worker).out_of_memory(assignment, now)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches of all workers' policies."""
        return chain.from_iterable(policy.waiting(now) for policy in self._inner())


class SlicesInTurn(SliceLevel):
    """SCLS's ablations PM and AB: a batch goes to the next worker whose memory holds it, or else to the largest."""

    def __init__(self, *parameters: Any) -> None:
        super().__init__(*parameters)
        self._placed = 0

    def _placement(self, loads: LeastLoaded) -> Placement:
        return self._place

    def _place(self, size: int, length: int, generation_length: int) -> tuple[Worker, float]:
        turn = self._placed % len(self._fleet)
        self._placed += 1
        in_turn = [*self._fleet[turn:], *self._fleet[:turn]]
        fitting = (worker for worker in in_turn if worker.memory.fits(size, length, generation_length))
        worker = next(fitting, None) or max(in_turn, key=lambda worker: worker.memory.capacity_tokens)
        return worker, worker.costs.serve_s(size, length, generation_length)

"""Serves background requests, the lines of bulk jobs, after all others, under policies that run batches to completion.

A worker gets background work only if it is still idle once all other requests are assigned. Tenants and jobs take turns
(`background_queue`), and the policy sees about as many of their lines as fill the idle workers. A batch cannot be
stopped, and requests that come meanwhile wait for its end. So its iterations are limited; unfinished rows wait again
with their tokens, which are prefilled again. A policy whose batches have limits of their own keeps these.

Starvation: background requests go ahead as their deadline nears (`deadlines`); those without one wait for all others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from scheduling.costs import ServingTime, linearized
from scheduling.outer_policy import OuterPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker, batch_shape
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request
from scheduling.sharing.background.background_feed import BackgroundFeed
from scheduling.sharing.background.deadlines import Deadlines
from scheduling.sharing.background.parking import with_these

# The background requests that the policy sees would fill the idle workers' memory this many times, so that the requests
# of a batch can be alike. In simulations 4 and 8 hardly differ. Not tuned.
SHOWN = 8.0
MOST_SHOWN = 1024  # the policy sees at most this many requests, which bounds the time of a decision; not tuned
# A batch takes at most these seconds, unless DECODED needs more: as long as ten short answers take together on the
# papers' GPUs, so that a small job of another tenant takes at most about twice as long as alone.
BATCH_S = 8.0
# Decoding takes at least this many times as long as the prefill, because unfinished rows repeat the prefill. Not tuned.
DECODED = 2.0


class BackgroundLast(OuterPolicy):
    """Two policies of the same kind: one for other requests, and one for background requests on workers left idle."""

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        """Make both policies."""
        self._others, self._background = make_policy(), BackgroundFeed(make_policy())
        self.mode = self._others.mode
        self._deadlines = Deadlines()
        self._ahead: dict[str, Request] = {}  # background requests that wait among the others, unchanged
        self._costs: ServingTime | None = None  # the costs of the first worker of the last decision

    def __len__(self) -> int:
        return super().__len__() + len(self._background.queue)

    def _inner(self) -> Iterable[Policy]:
        return self._others, self._background.policy

    def add(self, request: Request, now: float) -> None:
        """Let a request wait."""
        if not request.background:
            self._others.add(request, now)
        elif self._deadlines.add(request, now):
            self._go_ahead(request, now)
        else:
            self._let_wait(request)

    def _let_wait(self, request: Request) -> None:
        self._background.add(request)

    def _go_ahead(self, request: Request, now: float) -> None:
        """Let a background request wait among the others."""
        self._ahead[request.id] = request
        self._others.add(replace(request, tier="default"), now)

    def discard(self, request_id: str) -> bool:
        """Remove a waiting request; return False if it does not wait here."""
        request = self._background.remove(request_id) or self._ahead.pop(request_id, None)
        if request is not None:
            self._deadlines.remove(request)
        return self._others.discard(request_id) or request is not None

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        """Order background requests by their predictions only while predictions rank answers."""
        self._background.queue.set_rank_correlation(rank_correlation)
        super().set_rank_correlation(rank_correlation)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the fleet and the spare capacity among tenants by these weights."""
        self._background.queue.tenants.set_weights(weights)
        super().set_weights(weights)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Assign the others' requests, then background requests to the workers that are still idle."""
        self._costs = workers[0].costs if workers else self._costs
        self._background.follow(workers)
        self._follow_deadlines(workers, now)
        assignments = self._others.assign(workers, now)
        self._went_ahead(assignments)
        left = with_these(workers, assignments, now)
        return [*assignments, *self._batches(left, now)]

    def _batches(self, left: Mapping[str, Worker], now: float) -> Iterator[Assignment]:
        """Yield a bounded batch of background requests for each idle worker.

        A policy of mode `queue` assigns all requests that it sees. Each idle worker gets one of its batches, the one
        with the request whose turn is first; the requests of all other batches wait again.
        """
        background = self._background
        idle = {worker.name for worker in left.values() if worker.idle}
        tokens = SHOWN * sum(left[name].memory.capacity_tokens for name in idle)
        tokens -= sum(one.prefill + one.remaining for one in background.shown.values())
        background.show(background.queue.take_in_turn(tokens, MOST_SHOWN - len(background.shown)), now)
        offered = [worker for worker in left.values() if self.mode == "batch" or worker.idle]
        batches = background.policy.assign(offered, now) if idle else []
        turn = {request_id: place for place, request_id in enumerate(background.shown)}
        for batch in sorted(batches, key=lambda batch: min(turn[request.id] for request in batch.requests)):
            if batch.worker in idle:
                idle.remove(batch.worker)
                self._assigned_background(batch)
                yield bounded(batch, left[batch.worker].costs)
            else:
                for request in background.assigned(batch):
                    background.queue.put_back(request)

    def _assigned_background(self, assignment: Assignment) -> None:
        for request in self._background.assigned(assignment):
            self._deadlines.remove(request)

    def _went_ahead(self, assignments: Iterable[Assignment]) -> None:
        """Stop counting background requests as waiting that were assigned among the others."""
        for request in chain.from_iterable(assignment.requests for assignment in assignments):
            if (came := self._ahead.pop(request.id, None)) is not None:
                self._deadlines.remove(came)

    def _follow_deadlines(self, workers: Sequence[Worker], now: float) -> None:
        """Let jobs wait among other requests while their deadline is near and can be met, and set the jobs' weights."""
        for judged in self._deadlines.judge(workers, now):
            if judged.due.job.id:  # requests of no job have no weight among each other
                self._background.queue.set_weight(judged.due.job, judged.weight)
            for request in judged.moved:
                if judged.ahead:
                    self._overtake(request, now)
                else:
                    self._fall_back(request)

    def _overtake(self, request: Request, now: float) -> None:
        self._background.remove(request.id)
        self._go_ahead(request, now)

    def _fall_back(self, request: Request) -> None:
        del self._ahead[request.id]
        self._others.discard(request.id)
        self._background.add(request)

    def out_of_memory(self, assignment: Assignment, now: float) -> None:
        """Give a batch that did not fit back to the policy that made it."""
        if any(request.background for request in assignment.requests):
            self._background.out_of_memory(assignment, now)
            for request in assignment.requests:
                if self._deadlines.add(request, now):
                    self._overtake(request, now)
        else:
            self._others.out_of_memory(assignment, now)

    def wake_at(self, now: float) -> float | None:
        """Return when a policy wants to be asked again, or when a deadline may change the order."""
        instants = (super().wake_at(now), self._deadlines.wake_at(now))
        return min((at for at in instants if at is not None), default=None)

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches: other requests first, then background requests."""
        return chain(self._others.waiting(now), self._background.waiting(self._costs, now))


def bounded(batch: Assignment, costs: ServingTime) -> Assignment:
    """Return the batch with an iteration limit by BATCH_S and DECODED, or with its own limit if it has one."""
    if batch.iteration_limit is not None:
        return batch
    size, length, generation_length = batch_shape(batch.requests)
    curves = linearized(costs)
    prefill_s = curves.prefill_s(size, length)
    decode_s = max(BATCH_S - prefill_s, DECODED * prefill_s)
    longest = max(request.limit - request.generated for request in batch.requests)
    limit = int(min(longest, decode_s / max(decode_s / longest, curves.decode_step_s(size, length))))
    estimated_s = costs.serve_s(size, length, min(generation_length, limit))
    return replace(batch, iteration_limit=max(1, limit), estimated_s=estimated_s)

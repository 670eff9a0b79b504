"""Lets running rows leave for waiting requests that fit nowhere and delay all requests far less.

A row that leaves keeps its tokens, waits with its arrival, and joins later by a prefill of all its tokens. The rest of
its answer delays all requests by some seconds (`delay_cost`). It leaves if these are at least `Favour.leaves_from`
times the seconds of a waiting request and of the later prefill. What is left is predicted anew from what the row has
generated, so that without information from the predictor the oldest rows leave.

Nobody starves. A row leaves again only once it has as many new tokens as it had before, so at most once for each
doubling. A row stays if it would be due at once (`priority_key`), if its level is higher than the request's, or if it
has come back without its tokens before: some servers begin a row anew.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from scheduling.costs import Floats
from scheduling.length_distributions import conditional_totals
from scheduling.policies.fusion.delay_cost import DelayedRequests, delay_coefficients, delay_features
from scheduling.policies.fusion.fleet_arrays import FleetArrays
from scheduling.policies.fusion.length_buckets import WaitingRequest
from scheduling.policies.fusion.matching import admits
from scheduling.policies.fusion.priority_key import Favour
from scheduling.policy import Worker
from scheduling.request import Request

# A decision compares so many pairs of a row and a request, which bounds its time; each worker lets at most one row
# leave. Not tuned.
MOST_COMPARED = 64
REMEMBERED = 1000  # rows that came back without their tokens; any number above those that run at once works


class LeavingRows:
    """The row of each worker that was told to leave and still runs; another one leaves only after it."""

    def __init__(self) -> None:
        self._row_of: dict[str, str] = {}
        self._begun_anew: deque[str] = deque(maxlen=REMEMBERED)

    def came_back(self, request: Request) -> bool:
        """Return whether a request that now waits was told to leave; remember it if it has lost its tokens."""
        told = request.id in self._row_of.values()
        if told and not request.generated:
            self._begun_anew.append(request.id)
        return told

    def forget_gone(self, workers: Sequence[Worker]) -> None:
        """Forget the rows that run no more."""
        told = [(worker, self._row_of[worker.name]) for worker in workers if worker.name in self._row_of]
        self._row_of = {
            worker.name: row_id for worker, row_id in told if any(row.request.id == row_id for row in worker.rows)
        }

    def make_way(
        self,
        fleet: FleetArrays,
        delayed: DelayedRequests,
        waiting: Sequence[WaitingRequest],
        delay_s: Floats,
        weighted: Callable[[Floats], Floats],
        favour: Favour,
        now: float,
    ) -> Iterator[tuple[int, str, WaitingRequest]]:
        """Yield (worker, id of the row that leaves it, request that fits instead); the row has left the fleet then.

        `delay_s`, (workers, waiting), are the seconds by which these waiting requests would delay all requests.
        `weighted` returns predicted lengths as far as they count.
        """
        length, predicted, upper, predicted_at, limit, arrived_at, before = fleet.fields_of_rows()
        generated = fleet.cached - length
        # the engine's own predictions count in full
        median = np.where(predicted_at > 0, predicted, weighted(predicted))
        total, _ = conditional_totals(median, median * upper / predicted, generated, predicted_at)
        rest_tokens = np.minimum(total, limit) - generated
        rest_s, again_s = rest_delays(fleet, delayed, rest_tokens)
        due_at = arrived_at + favour.max_fcfs_ratio * rest_tokens * fleet.step_s()[:, None]
        may_leave = (generated - before >= np.maximum(before, 1)) & (due_at > now)
        may_leave[[name in self._row_of for name in fleet.names]] = False
        rest_s = np.where(may_leave, rest_s, 0.0)
        arrived = np.array([each.request.arrived_at for each in waiting])
        columns = np.lexsort((-arrived, -delay_s.min(axis=0))).tolist()  # the one that delays the others least is last
        for _ in range(MOST_COMPARED):
            if not columns:
                return
            worker, row = divmod(int(rest_s.argmax()), rest_s.shape[1])
            least_s = favour.leaves_from * (delay_s[worker, columns[-1]] + again_s[worker, row])
            if rest_s[worker, row] < least_s:
                return
            leaving, joining = fleet.workers[worker].rows[row].request, waiting[columns[-1]]
            if leaving.level > joining.request.level or leaving.id in self._begun_anew:
                rest_s[worker, row] = 0.0
                continue
            columns.pop()
            rest_s[worker] = 0.0
            cached, remaining = fleet.leave(worker, row)
            if admits(fleet, worker, joining.request):
                self._row_of[fleet.names[worker]] = leaving.id
                yield worker, leaving.id, joining
            else:
                fleet.add_row(worker, cached, remaining)


def rest_delays(fleet: FleetArrays, delayed: DelayedRequests, rest_tokens: Floats) -> tuple[Floats, Floats]:
    """Return the seconds by which each row's rest, and a prefill of its tokens, delay all, (workers, rows) each."""
    coefficients = delay_coefficients(fleet, delayed, np.arange(len(fleet))).T[:, :, None]
    parts = coefficients * delay_features(fleet.cached, rest_tokens)
    return parts[2:].sum(axis=0), parts[:2].sum(axis=0)

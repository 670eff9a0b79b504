"""Forecasts when each answer will come, by a simulation of the policy in force that starts from the present queue.

The policy's batches run to completion; where rows join and leave, `measured_order` says what waits when. The simulator
runs a copy of the policy with its waiting requests, on workers that continue their present work, with
learned costs. Lengths of answers are drawn from their predictions, and requests arrive at the recent rate. The
simulation runs in small pieces beside the planner's decisions, and ends after enough awaited answers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from scheduling.costs import ServingCurves, ServingTime, linearized
from scheduling.forecast.expectations import Stage, spread_of
from scheduling.length_distributions import drawn_length, log_spread, van_der_corput
from scheduling.policy import Policy, Worker
from scheduling.request import COVERAGE, Request, RowLength
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, Simulation, StartedBatch
from scheduling.simulation.trace import SimulatedAnswer

# The most awaited answers that are simulated; further requests are expected to be answered at the same rate. An answer
# takes a millisecond or two to simulate. Not tuned.
MOST_PLAYED = 200
MOST_ARRIVALS = 200  # the most simulated arrivals; they also bound the length of a forecast
QUICKEST = ServingCurves((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1e-3))  # the costs of an engine whose costs are unknown
GOLDEN = (math.sqrt(5) - 1) / 2  # shifts the quantile levels of each forecast, so that the next one draws other lengths


@dataclass(frozen=True, slots=True)
class PresentWork:
    """A worker with its rows, and its run-to-completion batches in the order in which they run. `progress` has the
    tokens that each row of the running batch has gained. `step_costs` are the costs of its engine's steps; None stands
    for `worker.costs`, which may know only whole batches. A worker without work may first have to load its model, which
    takes `loads_s`.
    """

    worker: Worker
    batches: tuple[StartedBatch, ...] = ()
    progress: int = 0
    step_costs: ServingTime | None = None
    loads_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """Seconds from the forecast until service begins and until the answer; `spread` is that of ln(`seconds`)."""

    stage: Stage
    starts_in_s: float
    seconds: float
    spread: float
    length: RowLength | None = None  # the length of a running row of a continuous batch, as it was predicted last


class Forecast:
    """One forecast, which began at `began_at`, an instant of the policy's clock."""

    def __init__(
        self,
        policy: Policy,
        work: Sequence[PresentWork],
        waiting: Sequence[Request],
        arrivals: Iterator[Request],
        now: float,
        number: int = 0,
    ) -> None:
        """`policy` must be a copy, because it is changed; `waiting` are the requests in it to forecast, in order.

        There must be at least one worker. Forecasts with different `number` draw different lengths.
        """
        self.began_at = self._played_to = now
        self._policy, self._number = policy, number
        self._waiting = {request.id: request for request in waiting}
        self._running: dict[str, tuple[Request, int]] = {}  # running requests with the tokens that they have generated
        self._drawn: dict[str, int] = {}  # the total generation length that was drawn for each request
        coming = list(islice(arrivals, MOST_ARRIVALS))
        self._simulation = Simulation(
            policy,
            [Arrival(request, self._draw(request, request.generated)) for request in coming],
            [_instance(one, now) for one in work],
            _engine(work[0]),
            number,
            tick_s=0.0,
        )
        self._simulation.process_events(now)
        for one in work:
            if not one.loads_s:
                self._resume(one, now)

    def advance(self, goes_on: Callable[[], bool]) -> bool:
        """Simulate while `goes_on()` returns True; return whether the forecast is complete."""
        simulation = self._simulation
        while not self._complete():
            if not goes_on():
                return False
            self._played_to = now = simulation.next_at()
            simulation.process_events(now)
            if simulation.decision_is_due(now):
                for assignment in self._policy.assign(simulation.describe_workers(now), now):
                    for request in assignment.requests:
                        self._draw(request, request.generated)
                    simulation.will_generate(self._drawn)
                    simulation.carry_out(assignment, now)
                simulation.schedule_wake_up(now)
        return True

    def expected(self) -> dict[str, ExpectedAnswer]:
        """Return the expected answer of each awaited request; the waiting ones are in the expected order of service.

        Rows that an earlier policy let join are included only if they ended in the forecast; `expected_of_rows` has
        them all.
        """
        answers = self._simulation.answers
        expected = {
            request_id: self._of("running", answers[request_id], request, generated)
            for request_id, (request, generated) in self._running.items()
            if request_id in answers
        }
        played = [answers[request_id] for request_id in self._waiting if request_id in answers]
        for answer in sorted(played, key=lambda answer: answer.started_at):
            request = self._waiting[answer.id]
            expected[answer.id] = self._of("waiting", answer, request, request.generated)
        return expected | self._behind(played)

    def _complete(self) -> bool:
        answers = self._simulation.answers
        if len(answers) >= MOST_PLAYED + MOST_ARRIVALS or self._simulation.next_at() == math.inf:
            return True
        awaited = [*self._running, *self._waiting]
        came = sum(request_id in answers for request_id in awaited)
        return came >= min(len(awaited), MOST_PLAYED)

    def _resume(self, work: PresentWork, now: float) -> None:
        """Let a worker continue its present work."""
        name = work.worker.name
        for row in work.worker.rows:
            self._begin(row.request, row.generated)
        for place, batch in enumerate(work.batches):
            for request in batch.assignment.requests:
                self._begin(request, request.generated + (work.progress if place == 0 else 0))
        self._simulation.will_generate(self._drawn)
        self._simulation.resume(name, work.worker.rows, work.batches, now)

    def _begin(self, request: Request, generated: int) -> None:
        self._running[request.id] = (request, min(generated, request.limit - 1))
        self._draw(request, min(generated, request.limit - 1))

    def _draw(self, request: Request, generated: int) -> int:
        """Draw a request's total generation length, given its generated tokens; later calls return the same length."""
        if self._drawn.get(request.id, 0) <= generated:
            level = (van_der_corput(len(self._drawn) + 1) + GOLDEN * self._number) % 1
            self._drawn[request.id] = generated + drawn_length(request, min(max(level, 0.005), 0.995), generated)
        return self._drawn[request.id]

    def _of(self, stage: Stage, answer: SimulatedAnswer, request: Request, generated: int) -> ExpectedAnswer:
        starts_in_s = max(0.0, answer.started_at - self.began_at)
        service_s = answer.finished_at - self.began_at - starts_in_s
        median = drawn_length(request, 0.5, generated)
        seconds = starts_in_s + service_s
        upper = drawn_length(request, 0.9, generated)
        share = service_s / seconds if seconds > 0 else 1.0
        return ExpectedAnswer(stage, starts_in_s, seconds, spread_of(log_spread(median, max(median, upper)), share))

    def _behind(self, played: Sequence[SimulatedAnswer]) -> dict[str, ExpectedAnswer]:
        """Return the expected answers of requests that were not simulated, at the rate of the simulated answers."""
        rest = [request for request_id, request in self._waiting.items() if request_id not in self._simulation.answers]
        elapsed_s = self._played_to - self.began_at
        each_s = elapsed_s / max(1, len(played))
        service_s = sum(answer.finished_at - answer.started_at for answer in played) / max(1, len(played))
        return {
            request.id: ExpectedAnswer(
                "waiting",
                max(0.0, elapsed_s + place * each_s - service_s),
                elapsed_s + place * each_s,
                spread_of(log_spread(request.predicted, max(request.predicted, request.predicted_upper)), 0.1),
            )
            for place, request in enumerate(rest, start=1)
        }


def expected_of_rows(work: PresentWork, slowness: float = 1.0) -> Iterator[tuple[str, ExpectedAnswer]]:
    """Yield each row's id and expected answer, for the worker's continuous batch at its present pace.

    A forecast is seconds old when the next one is complete. Running rows are therefore estimated anew for each
    snapshot: the tokens still to come by their predictions, times `slowness` times the seconds of the batch's next
    iteration. Rows that join and leave meanwhile cause errors, from which the intervals are learned.
    """
    rows = work.worker.rows
    if not rows:
        return
    token_s = slowness * step_s_of(work)
    for row in rows:
        median = drawn_length(row.request, 0.5, row.generated)
        upper = max(median, drawn_length(row.request, COVERAGE, row.generated))
        spread = spread_of(log_spread(median, upper), 1.0)
        length = RowLength(row.request.predicted_at, row.request.predicted, row.request.predicted_upper)
        yield row.request.id, ExpectedAnswer("running", 0.0, median * token_s, spread, length)


def step_s_of(work: PresentWork) -> float:
    """Return the seconds of the next iteration of a worker's continuous batch, which has rows."""
    return next_step_s(work.worker, work.step_costs or work.worker.costs)


def next_step_s(worker: Worker, costs: ServingTime) -> float:
    """Return the seconds of the next iteration of a worker's continuous batch, which has rows."""
    cached = [row.request.length + row.generated for row in worker.rows]
    read = sum(cached) / len(cached) if worker.memory.paged else max(cached)
    return linearized(costs).decode_step_s(len(cached), read)


def _instance(work: PresentWork, now: float) -> Instance:
    worker = work.worker
    return Instance(
        worker.name,
        worker.memory,
        estimated_costs=worker.costs,
        joins_at=now + work.loads_s,
        engine=_engine(work),
        model=worker.model,
    )


def _engine(work: PresentWork) -> EngineCosts:
    """Return the simulated engine's costs; QUICKEST if an iteration takes no time by the known costs."""
    curves = linearized(work.step_costs or work.worker.costs)
    return EngineCosts(curves if curves.decode_step_s(1, 1) > 0 else QUICKEST)

"""Sells promises in the simulator, by the product's own order of the queue and calibration, and counts the kept ones.

`python -m benchmarks.kept_promises --policies fusion,magnus,baton --loads 0.7,0.9,1.1,1.3,1.5 --json F`

A request comes, and is promised its answer with a probability of 50, 90 and 95 %, by the order of the queue that the
planner publishes twice a second and by the errors of earlier forecasts, read once a second. All answers count that were
promised after `--warm-seconds`. `burst` has 0.7 of saturation and 1.6 for a quarter of the time, `lost` loses one of
the four workers at 0.9 of saturation half-way. Lengths are log-normal, and the answer's length does not follow the
prompt's, so that a promise knows the mean length alone.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import numpy as np

from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.mixed.simulated_mix import (
    BULK_LINES,
    LIMIT,
    MACHINE,
    PROMPT_TOKENS,
    WORKERS,
    bulk_lines,
    lengths_of,
    run,
)
from cli.hosting.service_access import POLICIES
from cli.option_types import CommaSeparated
from models.new_requests import NewRequest
from models.planning.queue_snapshot import ModelForecast, ModelForecasts, ModelState, QueueSnapshot
from models.planning.response_time_estimate import (
    SAMPLED_UNANSWERED,
    RecentAnswer,
    RecentAnswers,
    ResponseTimeEstimate,
    UnansweredRequest,
)
from scheduling.forecast.forecast import next_step_s
from scheduling.forecast.forecast_inputs import RecentArrivals
from scheduling.forecast.measured_order import RowPace, queue_order
from scheduling.policies.fusion.serving_pace import ServingPace
from scheduling.policy import Assignment, Policy, Worker
from scheduling.request import Request
from scheduling.sharing.model_queue import ModelQueue
from scheduling.sharing.policy_factory import PolicySettings, favour_of, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, Simulation

PROBABILITIES = (0.5, 0.9, 0.95)
SNAPSHOT_S, READ_S = 0.5, 1.0  # as the planner writes snapshots, and as web processes read answers
COLUMNS = {
    "policy": "policy",
    "load": "load",
    "promised": "probability:.0%",
    "asked": "asked",
    "sold": "sold",
    "kept": "kept_share:.1%",
    "within, s": "promised_s:.1f",
    "response, s": "response_s:.1f",
}
MODEL, BEGAN = "simulated", 1e9
STEP_S = MACHINE.curves.decode_step_s(1, PROMPT_TOKENS)  # of a row alone
# Stretches of arrivals by shape: (share of saturation, share of the seconds).
SHAPES: dict[str, list[tuple[float, float]]] = {
    "burst": [(0.7, 0.125), (1.6, 0.125)] * 2 + [(0.7, 0.5)],
    "lost": [(0.9, 1.0)],
}


class WatchedPolicy:
    """A policy, and what its planner knows of its queue: what waits, what came, and at which pace it is served."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.queue, self.arrivals, self.pace, self.row_pace = ModelQueue(), RecentArrivals(), ServingPace(), RowPace()
        self.workers: Sequence[Worker] = ()
        self.refused = set[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def __len__(self) -> int:
        return len(self._policy)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait, unless it was refused."""
        if request.id in self.refused:
            return
        self.queue.add(request)
        self.arrivals.add(request, now)
        self._policy.add(request, now)

    def give_up_late(self, now: float) -> None:
        """Remove waiting requests whose predicted answers would be late even on idle workers."""
        for one in [one.request for one in self.queue.waiting]:
            if one.deadline_at is not None and one.deadline_at < now + STEP_S * one.predicted:
                self.queue.remove(one.id)
                self._policy.discard(one.id)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Decide, and count what was decided."""
        decided = self._policy.assign(workers, now)
        for assignment in decided:
            for request in assignment.requests:
                self.queue.remove(request.id)
        self.pace.decided((one for each in decided for one in each.requests), len(self.queue.waiting), now)
        self.workers = workers
        return decided


class Seller:
    """Promises each arrival its answer, as a web process does."""

    def __init__(self, policy: WatchedPolicy, name: str) -> None:
        self._policy, self._favour = policy, favour_of(name, PolicySettings())
        self._answers, self._read = RecentAnswers(), set[str]()
        self._estimate: ResponseTimeEstimate = self._answers.add(())
        self._snapshot: QueueSnapshot | None = None
        self._etas: dict[str, Any] = {}
        self.promised: dict[str, list[float | None]] = {}

    def publish(self, now: float) -> None:
        """Publish the order of the queue, as the planner does."""
        busy = [one for one in self._policy.workers if one.rows]
        self._policy.row_pace.looked(((one.rows, next_step_s(one, one.costs)) for one in busy), now)
        order = queue_order(
            self._policy.queue.waiting,
            self._policy.arrivals,
            self._policy.pace,
            self._policy.workers,
            now,
            slowness=self._policy.row_pace.slowness,
            favour=self._favour,
            joins=self._policy.mode == "continuous",
        )
        at = datetime.fromtimestamp(BEGAN + now, UTC)
        forecasts = ModelForecasts(of_models={MODEL: ModelForecast(at=BEGAN + now, order=order)})
        self._snapshot = QueueSnapshot(at=at, models={MODEL: ModelState(workers=WORKERS)}, forecasts=forecasts)

    def read(self, simulation: Simulation, requests: dict[str, Request], now: float) -> None:
        """Learn from the answers that came, and from those that have not."""
        ended = [one for one in simulation.answers.values() if one.id not in self._read]
        came = []
        for one in sorted(ended, key=lambda one: one.finished_at):
            eta, request = self._etas.get(one.id), requests[one.id]
            told = () if eta is None else (eta.forecast_s, eta.low_s, eta.high_s, eta.third)
            at = BEGAN + one.finished_at
            came.append(RecentAnswer("acme/a", request.length, one.generated, one.response_s, at, *told))
            self._read.add(one.id)
        waiting = [requests[name] for name in self._etas if name not in self._read]
        every = max(1, len(waiting) // SAMPLED_UNANSWERED)
        still = []
        for request in waiting[::every]:
            eta, age_s = self._etas[request.id], now - request.arrived_at
            left_s = None if eta.high_s is None else eta.high_s - age_s
            still.append(UnansweredRequest(eta.forecast_s, age_s, left_s, float(every), eta.third))
        self._estimate = self._answers.add(came, still, BEGAN + now)

    def likely_s(self, request: Request, chance: float) -> float | None:
        """Return the seconds within which a request that comes now is answered with this chance."""
        return self._estimate.likely_s(_new(request), self._snapshot, BEGAN + request.arrived_at, chance)

    def sell(self, request: Request) -> None:
        """Promise a request that comes now its answer with each of PROBABILITIES, if anything is known."""
        new, now = _new(request), BEGAN + request.arrived_at
        eta = self._estimate.eta(new, self._snapshot, now)
        if eta is not None:
            self._etas[request.id] = eta
        self.promised[request.id] = self._estimate.within_s(new, self._snapshot, now, PROBABILITIES)


def _new(request: Request) -> NewRequest:
    return NewRequest("acme", MODEL, "a", "", "", {}, request.length, request.length, request.limit)


def sold(name: str, load: str, saturation: float, seconds: float, warm_s: float, seed: int) -> list[Json]:
    """Simulate one load under one policy; returns a row for each probability."""
    arrivals = arrivals_of(load, saturation, warm_s, seconds, seed)
    policy = WatchedPolicy(make_policy(name, PolicySettings(max_output_tokens=LIMIT)))
    seller = Seller(policy, name)
    leaves_at = warm_s + seconds / 2 if load == "lost" else math.inf
    simulation = simulated(policy, seller, arrivals, seller.sell, leaves_at, seed)
    return _rows(name, load, seller.promised, simulation, warm_s)


def simulated(
    policy: WatchedPolicy,
    seller: Seller,
    arrivals: Sequence[Arrival],
    meet: Callable[[Request], None],
    leaves_at: float,
    seed: int,
) -> Simulation:
    """Serve these arrivals, with a worker that leaves; `meet` gets each of them just before it comes."""
    leaving = Instance("w0", MACHINE.memory, leaves_at=leaves_at)
    fleet = [leaving, *(Instance(f"w{n}", MACHINE.memory) for n in range(1, WORKERS))]
    simulation = Simulation(policy, arrivals, fleet, EngineCosts(MACHINE.curves), seed, 0.1)
    requests = {one.request.id: one.request for one in arrivals}
    coming = iter(sorted(requests.values(), key=lambda one: (one.arrived_at, one.id)))
    following = next(coming, None)
    publish_at = read_at = 0.0
    while (now := simulation.next_at()) < math.inf:
        while following is not None and following.arrived_at <= now:
            meet(following)
            following = next(coming, None)
        simulation.process_events(now)
        if simulation.decision_is_due(now):
            for assignment in policy.assign(simulation.describe_workers(now), now):
                simulation.carry_out(assignment, now)
            simulation.schedule_wake_up(now)
        if now >= publish_at and policy.workers:
            policy.workers = simulation.describe_workers(now)
            seller.publish(now)
            publish_at = now + SNAPSHOT_S
        if now >= read_at:
            policy.give_up_late(now)
            seller.read(simulation, requests, now)
            read_at = now + READ_S
    return simulation


def arrivals_of(load: str, saturation: float, warm_s: float, seconds: float, seed: int) -> list[Arrival]:
    """Draw the arrivals of a load: a share of saturation, or the name of a shape."""
    shape = SHAPES.get(load) or [(float(load), 1.0)]
    rng, instants, at = np.random.default_rng(seed), list[float](), 0.0
    for share, part in [(shape[0][0], warm_s / seconds), *shape]:
        until = at + part * seconds
        count = rng.poisson(share * saturation * part * seconds)
        instants += np.sort(rng.uniform(at, until, count)).tolist()
        at = until
    return lengths_of(len(instants), "i", "default", instants, seed)


def _rows(
    policy: str, load: str, promised: dict[str, list[float | None]], simulation: Simulation, warm_s: float
) -> list[Json]:
    answers = {name: one for name, one in simulation.answers.items() if name in promised and one.arrived_at >= warm_s}
    response = np.array([one.response_s for one in answers.values()])
    within = np.array([promised[name] for name in answers], np.float64)  # not a number: nothing is promised
    rows = []
    for column, probability in enumerate(PROBABILITIES):
        is_sold = np.isfinite(within[:, column])
        kept = (response <= within[:, column])[is_sold]
        rows.append(
            {
                "policy": policy,
                "load": load,
                "probability": probability,
                "asked": len(answers),
                "sold": len(kept),
                "kept_share": float(kept.mean()),
                "promised_s": float(np.median(within[is_sold, column])),
                "response_s": float(np.median(response)),
            }
        )
    return rows


@click.command(help=__doc__)
@click.option(
    "--policies", type=CommaSeparated(click.Choice(POLICIES)), default="fusion,magnus,baton", show_default=True
)
@click.option("--loads", type=CommaSeparated(), default="0.7,0.9,1.1,1.3,1.5,burst,lost", show_default=True)
@click.option("--seconds", default=240.0, show_default=True, help="Of arrivals at each load.")
@click.option("--warm-seconds", default=60.0, show_default=True, help="Of arrivals at each load before they count.")
@click.option("--seed", default=1, show_default=True)
@json_option
def main(
    policies: Sequence[str], loads: Sequence[str], seconds: float, warm_seconds: float, seed: int, results: Results
) -> None:
    """Sell promises under each policy at each load."""
    rows: list[Json] = []
    for policy in policies:
        saturation = BULK_LINES / run(policy, bulk_lines(BULK_LINES, 0)).makespan_s
        for load in loads:
            rows += [
                one | {"saturation": saturation} for one in sold(policy, load, saturation, seconds, warm_seconds, seed)
            ]
            results.write(rows)
    print_table(rows, COLUMNS)


if __name__ == "__main__":
    main()

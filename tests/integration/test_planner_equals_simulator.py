"""What is simulated is what is served: the planner on Postgres and the simulator decide alike on the same arrivals."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from learning.serving_time import KnnServingTime
from models import planning
from scheduling.costs import ServingCurves
from scheduling.memory import KvMemory
from scheduling.policies.by_name import PolicySettings, make_policy
from scheduling.request import Request
from scheduling.simulation.engine import EngineCosts
from scheduling.simulation.worker import Instance
from scheduling.simulator import Arrival, simulate
from tasks.planner import Planner, Rules
from tests.integration.stage import CURVES, Stage

CURVE = ServingCurves(tuple(CURVES["prefill"]), tuple(CURVES["decode"]))
KV_TOKENS = 6000
SETTINGS = PolicySettings(max_prompt_tokens=300, max_output_tokens=300, wma_threshold=20_000)


@pytest.mark.parametrize("name", ["vs", "glp", "abp", "magnus"])
def test_the_planner_assigns_what_the_simulator_assigns(stage: Stage, name: str):
    arrivals = random_arrivals(count=80)
    fleet = [Instance(worker, KvMemory(KV_TOKENS, 1), believed=KnnServingTime(CURVE)) for worker in ("w1", "w2")]
    trace = simulate(make_policy(name, SETTINGS), arrivals, fleet, EngineCosts(CURVE), seed=0)
    assert len(trace.answers) == len(arrivals)
    simulated = sorted((run.started_at, run.worker, sorted(run.ids)) for run in trace.batches)
    assert served_live(stage, name, arrivals, trace) == simulated
    assert any(len(ids) > 1 for _, _, ids in simulated)


def served_live(stage: Stage, name, arrivals, trace) -> list[tuple[float, str, list[str]]]:
    """The planner's batches when requests arrive and batches end at the instants of the trace."""
    for instance in ("w1", "w2"):
        stage.worker(instance, kv_tokens=KV_TOKENS)
    rules = Rules(policy=name, settings=SETTINGS, lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0)
    instants = sorted({a.request.arrived_at for a in arrivals} | {run.ended_at for run in trace.batches})
    served = []
    with stage.database.connect() as connection:
        with connection.begin():
            planner = Planner(connection, planning.lead(connection) or 0, rules)
        for now in instants:
            for arrival in arrivals:
                if arrival.request.arrived_at == now:
                    submit(stage, arrival.request)
            for run in trace.batches:
                if run.ended_at == now:
                    end(stage, list(run.ids))
            before = set(stage.batches())
            with connection.begin():
                planner.decide(replace(planning.standing(connection), now=now))
            after = stage.batches()
            served += [(now, *after[batch_id]) for batch_id in after.keys() - before]
    return sorted(served)


def submit(stage: Stage, request: Request) -> None:
    stage.request(
        request.id,
        arrived_at=datetime.fromtimestamp(request.arrived_at, UTC),
        prompt_tokens=request.length,
        limit_tokens=request.limit,
        predicted_tokens=request.predicted,
        predicted_upper_tokens=request.predicted_upper,
    )


def end(stage: Stage, ids: list[str]) -> None:
    (batch_id,) = (batch_id for batch_id, (_, requests) in stage.batches().items() if requests == sorted(ids))
    stage.end_batch(batch_id)


def random_arrivals(count: int) -> list[Arrival]:
    """Arrivals at multiples of 1/64 s, which a float and Postgres both hold exactly."""
    chance = random.Random(17)
    arrivals, at = [], 1_000_000.0
    for n in range(count):
        at += chance.randrange(1, 16) / 64
        answer = chance.randrange(1, 300)
        predicted = max(1, min(300, answer + chance.randrange(-20, 20)))
        request = Request(
            id=f"r{n:03}",
            arrived_at=at,
            length=chance.randrange(1, 300),
            limit=300,
            predicted=predicted,
            predicted_upper=min(300, predicted + 40),
        )
        arrivals.append(Arrival(request, answer))
    return arrivals

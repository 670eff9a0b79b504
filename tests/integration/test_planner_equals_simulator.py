"""What is simulated is what is served: the planner on Postgres and the simulator decide alike on the same arrivals."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from learning.serving_time import KnnServingTime
from models import batch_claims
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policy import Assignment, Policy, Worker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tasks.planning.planner import Planner, PlannerRules
from tests.integration.database_stage import CURVES, Stage

CURVE = ServingCurves(tuple(CURVES["prefill"]), tuple(CURVES["decode"]))
KV_TOKENS = 6000
SETTINGS = PolicySettings(max_prompt_tokens=300, max_output_tokens=300, wma_threshold=20_000, slice_tokens=300)
TICK_S = 0.25

Decisions = list[tuple[float, str, list[str]]]  # instant, worker, ids


class Asked:
    """A policy, when it was asked, and what it decided."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.asked_at: list[float] = []
        self.decided: Decisions = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def __len__(self) -> int:
        return len(self.policy)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        assignments = self.policy.assign(workers, now)
        self.asked_at.append(now)
        self.decided += [(now, one.worker, sorted(request.id for request in one.requests)) for one in assignments]
        return assignments


# of a batch, a queue and a continuous policy; what the rows of `baton` and `fusion` have generated, a planner only
# knows from heartbeats, so it decides from other numbers than a simulator
@pytest.mark.parametrize("name", ["vs", "glp", "abp", "magnus", "scls", "ccb"])
def test_the_planner_assigns_what_the_simulator_assigns(stage: Stage, name: str):
    arrivals = random_arrivals(count=80)
    fleet = [Instance(worker, KvMemory(KV_TOKENS, 1), estimated_costs=KnnServingTime(CURVE)) for worker in ("w1", "w2")]
    policy = Asked(make_policy(name, SETTINGS))
    trace = simulate(policy, arrivals, fleet, EngineCosts(CURVE), seed=0, tick_s=TICK_S)
    assert len(trace.answers) == len(arrivals)
    assert any(len(ids) > 1 for _, _, ids in policy.decided)
    assert served_live(stage, name, arrivals, trace, policy.asked_at) == sorted(policy.decided)


def served_live(stage: Stage, name, arrivals, trace, asked_at) -> Decisions:
    """The planner's batches, when it is asked at these instants, and requests arrive and end as in the trace."""
    for instance in ("w1", "w2"):
        stage.worker(instance, kv_tokens=KV_TOKENS)
    rules = PlannerRules(policy=name, settings=SETTINGS, lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0)
    served: Decisions = []
    before = float("-inf")
    with stage.database.connect() as connection:
        with connection.begin():
            planner = Planner(connection, batch_claims.lead(connection) or 0, rules)
        for now in asked_at:
            for arrival in arrivals:
                if before < arrival.request.arrived_at <= now:
                    submit(stage, arrival.request)
            for run in trace.batches:
                if before <= run.started_at < now:
                    start(stage, run.ids, run.started_at)
            finish(stage, [answer.id for answer in trace.answers.values() if before < answer.finished_at <= now])
            known = set(stage.batches())
            with connection.begin():
                planner.decide(replace(batch_claims.planner_inputs(connection), now=now))
            after = stage.batches()
            served += [(now, *after[batch_id]) for batch_id in after.keys() - known]
            before = now
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


def start(stage: Stage, ids: Sequence[str], at: float) -> None:
    stage.sql(
        "update batches set started_at = :at where id = (select batch_id from requests where id = :id)",
        id=ids[0],
        at=datetime.fromtimestamp(at, UTC),
    )


def finish(stage: Stage, ids: Sequence[str]) -> None:
    """What workers do: requests are answered one by one, a batch ends with its last."""
    stage.sql(
        """update requests set status = 'completed', finished_at = clock_timestamp(), output_tokens = 7
        where id = any(:ids)""",
        ids=list(ids),
    )
    over = stage.sql(
        """select id from batches b where finished_at is null
        and not exists (select from requests where batch_id = b.id and status = 'in_progress')"""
    )
    for (batch_id,) in over:
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

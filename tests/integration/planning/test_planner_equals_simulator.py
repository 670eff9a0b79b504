"""The planner on Postgres and the simulator decide alike, for every policy, on the same arrivals.

A live planner learns from its database what workers did. Here the trace of the simulation is written into it before
each decision: which batches started, which requests ended or came back, how far the rows are.

`fusion` computes when a request must not be overtaken any more from what waits when it is added. A planner adds what
came since its last decision in order of arrival, a simulator at each event, so for this policy alone the simulated one
is fed as a planner feeds (`Recorder.feeds_at_decisions`).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from models import planner_state
from models.planning import leadership
from processes.planner_rules import PlannerRules
from scheduling.costs import ProfiledCurves, ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policy import Assignment, Policy, Worker
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace
from tasks.planning.planner import Planner
from tests.integration.database_stage import CURVES, Stage, facts, insert_worker

(P1, P2, P3, P4), (D1, D2, D3, D4) = CURVES.prefill, CURVES.decode
CURVE = ServingCurves((P1, P2, P3, P4), (D1, D2, D3, D4))
SETTINGS = PolicySettings(max_prompt_tokens=300, max_output_tokens=300, wma_threshold=20_000, slice_tokens=100)
TICK_S = 0.25

Decisions = list[tuple[float, str, list[str], list[str]]]  # instant, worker, ids, preempted ids


@dataclass(frozen=True)
class Ask:
    """What a simulator told a policy until a decision, apart from new requests."""

    now: float
    rank_correlation: RankCorrelation
    # requests since the last decision that were preempted, or not done within their iteration limit
    returned: list[Request]
    rows: dict[str, int]  # tokens generated so far, by running request


class Recorder:
    """A policy, what it was told, and what it decided.

    With `feeds_at_decisions` it is fed as a planner feeds it: at each decision, with all that came since the one before
    in order of arrival. Otherwise requests go through as they come.
    """

    def __init__(self, policy: Policy, feeds_at_decisions: bool) -> None:
        self.policy = policy
        self.feeds_at_decisions = feeds_at_decisions
        self.asks: list[Ask] = []
        self.decided: Decisions = []
        self._rank_correlation = RankCorrelation()
        self._added: set[str] = set()
        self._returned: list[Request] = []
        self._to_feed: list[Request] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def __len__(self) -> int:
        return len(self.policy)

    def add(self, request: Request, now: float) -> None:
        if request.id in self._added:
            self._returned.append(request)
        self._added.add(request.id)
        if self.feeds_at_decisions:
            self._to_feed.append(request)
        else:
            self.policy.add(request, now)

    def set_rank_correlation(self, rank_correlation: RankCorrelation) -> None:
        self._rank_correlation = rank_correlation
        self.policy.set_rank_correlation(rank_correlation)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        rows = {row.request.id: row.generated for worker in workers for row in worker.rows}
        self.asks.append(Ask(now, self._rank_correlation, self._returned, rows))
        for request in sorted(self._to_feed, key=lambda request: (request.arrived_at, request.id)):
            self.policy.add(request, now)
        self._returned, self._to_feed = [], []
        assignments = self.policy.assign(workers, now)
        self.decided += [
            (now, one.worker, sorted(request.id for request in one.requests), sorted(one.preempts))
            for one in assignments
        ]
        return assignments


# A worker's memory. With 1000 tokens the rows of `baton` outgrow it, and the policy preempts some; with 1500 there are
# more failures than one batch of `sequence` takes. With 2300 requests wait under `fusion`, and no row outgrows it: rows
# that wait for memory at their worker stay behind the others of their batch, whose progress is reported as one.
MEMORY_TOKENS = dict.fromkeys(POLICIES, 6000) | {"sequence": 1500, "baton": 1000, "fusion": 2300}
# policies whose requests return: sliced, predicted too short, or preempted by the policy
REQUESTS_COME_BACK = {"scls", "sequence", "baton"}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_planner_assigns_what_the_simulator_assigns(stage: Stage, name: str):
    arrivals = random_arrivals(count=80)
    policy, trace = simulated(name, arrivals)
    assert any(len(ids) > 1 for _, _, ids, _ in policy.decided)
    assert any(ask.returned for ask in policy.asks) == (name in REQUESTS_COME_BACK)
    assert any(preempted for *_, preempted in policy.decided) == (name == "baton")
    assert (trace.preempted > 0) == (name == "baton")
    assert served_live(stage, name, arrivals, trace, policy.asks) == sorted(policy.decided)


def test_the_same_rows_leave_for_a_worker_that_has_run_dry(stage: Stage):
    arrivals = random_arrivals(count=120)
    policy, trace = simulated("fusion", arrivals, speed=8.0)
    assert any(preempted for *_, preempted in policy.decided)
    assert any(ask.returned for ask in policy.asks)
    assert served_live(stage, "fusion", arrivals, trace, policy.asks, speed=8.0) == sorted(policy.decided)


def simulated(name: str, arrivals: Sequence[Arrival], speed: float = 1.0) -> tuple[Recorder, Trace]:
    """The recorded policy and the trace; one worker is `speed` times as fast as the other."""
    memory = KvMemory(MEMORY_TOKENS[name], 1)
    fleet = [Instance("w1", memory), Instance("w2", memory, speed)]
    policy = Recorder(make_policy(name, SETTINGS), feeds_at_decisions=name == "fusion")
    trace = simulate(policy, arrivals, fleet, EngineCosts(CURVE), seed=0, tick_s=TICK_S)
    assert len(trace.answers) == len(arrivals)
    assert trace.out_of_memory == 0
    return policy, trace


def served_live(
    stage: Stage, name: str, arrivals: Sequence[Arrival], trace: Trace, asks: Sequence[Ask], speed: float = 1.0
) -> Decisions:
    """The planner's batches, when it is asked at these instants, and requests arrive, run and end as in the trace."""
    for worker, of in (("w1", 1.0), ("w2", speed)):
        curves = ProfiledCurves(EngineCosts(CURVE).faster(of).curves)
        insert_worker(stage.sql, facts(worker, kv_tokens=MEMORY_TOKENS[name], curves=curves))
    rules = PlannerRules(policy=name, settings=SETTINGS, lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0)
    served: Decisions = []
    before = float("-inf")
    with stage.database.connect() as connection:
        with connection.begin():
            lead = leadership.take(connection, "planner", 3600.0)
            assert lead is not None
            planner = Planner(connection, lead, planner_state.next_epoch(connection), rules)
        for ask in asks:
            for arrival in arrivals:
                if before < arrival.request.arrived_at <= ask.now:
                    submit(stage, arrival.request)
            for run in trace.batches:
                if run.ids and before <= run.started_at < ask.now:
                    start(stage, run.ids, run.started_at)
            finish(stage, [answer.id for answer in trace.answers.values() if before < answer.finished_at <= ask.now])
            for request in ask.returned:
                give_back(stage, request)
            end_batches(stage)
            write_progress(stage, ask.rows)
            known = set(stage.batches())
            with connection.begin():
                planner.decide(
                    replace(
                        planner_state.planner_inputs(connection), now=ask.now, rank_correlation=ask.rank_correlation
                    )
                )
            after = stage.batches()
            preempts = dict(stage.sql("select id, preempts from batches"))
            served += [(ask.now, *after[batch_id], sorted(preempts[batch_id])) for batch_id in after.keys() - known]
            before = ask.now
    return sorted(served)


def submit(stage: Stage, request: Request) -> None:
    stage.request(
        request.id,
        arrived_at=datetime.fromtimestamp(request.arrived_at, UTC),
        prompt_tokens=request.length,
        limit_tokens=request.limit,
        predicted_tokens=request.predicted,
        predicted_upper_tokens=request.predicted_upper,
        tier=request.tier,
        priority=request.priority,
    )


def start(stage: Stage, ids: Sequence[str], at: float) -> None:
    stage.sql(
        "update batches set started_at = :at where id = (select batch_id from requests where id = :id)",
        id=ids[0],
        at=datetime.fromtimestamp(at, UTC),
    )


def finish(stage: Stage, ids: Sequence[str]) -> None:
    """Write an answer as workers do."""
    stage.sql(
        """update requests set status = 'completed', finished_at = clock_timestamp(), output_tokens = 7
        where id = any(:ids)""",
        ids=list(ids),
    )


def give_back(stage: Stage, request: Request) -> None:
    """Return a row as workers do once it is preempted, or not done within its iteration limit."""
    stage.sql(
        """update requests set status = 'queued', planner_epoch = 0, attempts = attempts - 1,
        generated_ids = cast(:tokens as int[]) where id = :id and status = 'in_progress'""",
        id=request.id,
        tokens=[1] * request.generated,
    )


def end_batches(stage: Stage) -> None:
    """End the batches of which no request is left, as workers do."""
    over = stage.sql(
        """select id from batches b where finished_at is null
        and not exists (select from requests where batch_id = b.id and status = 'in_progress')"""
    )
    for (batch_id,) in over:
        stage.end_batch(batch_id)


def write_progress(stage: Stage, rows: Mapping[str, int]) -> None:
    """Write as heartbeats do how many tokens each row of a batch has gained.

    Between heartbeats a planner guesses the progress from the estimated serving time. An estimate of zero prevents
    that, because a simulator has nothing to guess.
    """
    for request_id, generated in rows.items():
        stage.sql(
            """update batches b set progress_tokens = :generated - cardinality(r.generated_ids), estimated_s = 0
            from requests r where r.id = :id and b.id = r.batch_id""",
            id=request_id,
            generated=generated,
        )


def random_arrivals(count: int) -> list[Arrival]:
    """Arrivals at multiples of 1/64 s, which a float and Postgres both hold exactly."""
    chance = random.Random(17)
    arrivals, at = [], 1_000_000.0
    for n in range(count):
        at += chance.randrange(1, 16) / 64
        answer = chance.randrange(1, 300)
        error = -150 if n % 4 == 0 else chance.randrange(-20, 20)
        predicted = max(1, min(300, answer + error))
        request = Request(
            id=f"r{n:03}",
            arrived_at=at,
            length=chance.randrange(1, 300),
            limit=300,
            predicted=predicted,
            predicted_upper=min(300, predicted + 40),
            priority=chance.choice([0, 0, 1]),
        )
        arrivals.append(Arrival(request, answer))
    return arrivals

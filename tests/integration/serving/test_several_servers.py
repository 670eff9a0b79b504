"""Servers of different size and speed beside a worker of our own, for one model and for two, under one planner."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from inference.local.engine import Engine
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_probe import connect
from processes.planner_rules import PlannerRules
from scheduling.kv_memory import KvMemory
from scheduling.sharing.policy_factory import PolicySettings
from scheduling.worker_facts import WorkerFacts
from tasks.planning.leader import Leader
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.results.live_tokens import LiveRows
from tests.integration.database_stage import MODEL, Stage
from tests.integration.serving_worker import TERMS, small_model
from tests.integration.stub_engine_server import StubServer

RULES = PlannerRules("fusion", PolicySettings(), lookahead_s=0.0, alive_s=30.0, lease_s=30.0)
REQUESTS = 40
WITHIN_TURNS = 6000  # steps of the planner, ten milliseconds apart: far more than a loaded machine needs
THREADS = 64  # each batch that a worker serves takes one


class Fleet:
    """Workers with their servers, a planner, and threads in place of the broker."""

    def __init__(self, stage: Stage, directory_of_models: pytest.TempPathFactory) -> None:
        self.stage, self.leader = stage, Leader(stage.database, RULES)
        self.loaded, self.format = small_model(directory_of_models.getbasetemp() / MODEL)
        self.runners: dict[str, BatchRunner] = {}
        self.engines: dict[str, RemoteEngine] = {}
        self.servers: list[StubServer] = []
        self._pool = ThreadPoolExecutor(THREADS)

    def server(self, name: str, model: str = MODEL, max_rows: int | None = None) -> StubServer:
        """A worker in front of a server of its own."""
        server = StubServer()
        self.servers.append(server)
        found = connect(server.url, max_rows=max_rows)
        self.engines[name] = engine = RemoteEngine(found, self.format.detokenizer)

        facts = WorkerFacts(name, model, "stub", KvMemory(1600, 1, True, 16))
        self._start(ServedModel(lambda: engine, self.format, facts, lambda: engine.watch.report))
        return server

    def own(self, name: str, kv_tokens: int) -> None:
        """A worker with our own engine."""
        budget, delta = kv_tokens * self.loaded.delta_bytes, self.loaded.delta_bytes
        lacks = ("logprobs", "response_format")
        facts = WorkerFacts(name, MODEL, "cpu", KvMemory(budget, delta), lacks=lacks)
        self._start(ServedModel(lambda: Engine(self.loaded, budget), self.format, facts))

    def _start(self, served: ServedModel) -> None:
        runner = BatchRunner(
            self.stage.database,
            served,
            TERMS,
            renewals=self.stage.database.execution_options(isolation_level="AUTOCOMMIT"),
            kick_planner=lambda: None,
            on_broken=lambda reason: None,
            live_rows=LiveRows(lambda step: None),
        )
        runner.start()
        self.runners[served.facts.name] = runner

    def plan_until(self, condition: Callable[[], bool]) -> None:
        """Plan and deliver, turn by turn, until the condition holds."""
        pause = Event()
        for _ in range(WITHIN_TURNS):
            if condition():
                return
            for batch_id, worker in self.leader.step():
                self._pool.submit(self.runners[worker].serve, batch_id)
            pause.wait(0.01)
        pytest.fail(f"never true; requests are {self.count()}")

    def count(self) -> dict[str, int]:
        """The number of requests in each status."""
        return dict(self.stage.sql("select status, count(*) from requests group by status"))

    def ended(self) -> int:
        """Requests that have their answers; those of our model, which knows no end, run to their limits."""
        return self.count().get("completed", 0) + self.count().get("incomplete", 0)

    def served(self) -> dict[str, int]:
        """The number of answers that each worker gave."""
        return dict(
            self.stage.sql("select worker, count(*) from requests r join batches b on b.id = batch_id group by 1")
        )

    def close(self) -> None:
        for server in self.servers:
            server.gate.set()
        for runner in self.runners.values():
            runner.stop()
        self._pool.shutdown()
        for engine in self.engines.values():
            engine.close()
        for server in self.servers:
            server.die()
        self.leader.resign()


@pytest.fixture
def fleet(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(stage, tmp_path_factory)
    yield made
    made.close()


def test_each_gets_what_it_can_carry_and_a_slow_server_holds_nobody_up(stage: Stage, fleet: Fleet):
    fleet.server("fast")
    slow = fleet.server("slow", max_rows=2)
    fleet.own("own", kv_tokens=120)
    slow.gate.clear()
    for n in range(REQUESTS):
        stage.request(f"r{n:02}")
    fleet.plan_until(lambda: fleet.ended() == REQUESTS - 2)
    assert (slow.running, slow.peak) == (2, 2)
    slow.gate.set()
    fleet.plan_until(lambda: fleet.ended() == REQUESTS)
    served = fleet.served()
    assert served.keys() == {"fast", "slow", "own"}
    assert served["slow"] == 2


def test_a_server_that_dies_with_rows_in_it_leaves_them_to_the_others(stage: Stage, fleet: Fleet):
    dying, other = fleet.server("dying"), fleet.server("other")
    fleet.own("own", kv_tokens=120)
    dying.gate.clear()
    other.gate.clear()
    for n in range(REQUESTS):
        stage.request(f"r{n:02}")
    fleet.plan_until(lambda: dying.running > 2)
    dying.die()
    other.gate.set()
    fleet.plan_until(lambda: fleet.ended() == REQUESTS)
    assert "dying" not in fleet.served()
    assert set(stage.requests("attempts").values()) == {1}

"""One request that harms a real worker process, among others: it alone fails, and the others are not charged for it."""

import math
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from scheduling.policies.policy_factory import PolicySettings
from tasks.planning.leader import Leader
from tasks.planning.planner_rules import PlannerRules
from tests.integration.database_stage import MODEL, Stage, eventually
from tests.integration.poisoned_worker import BREAKS_DEVICE, EXHAUSTS, KILLS, serve
from tests.integration.serving_worker import small_model
from tests.integration.small_model import UNKNOWN_TO_MODEL

RULES = PlannerRules("fusion", PolicySettings(), lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0, resend_s=3600.0)
# Worker processes are forked from one that has imported torch, so that they start at once.
FORK_SERVER = get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.integration.poisoned_worker"])

pytestmark = pytest.mark.timeout(600)


class OneWorker:
    """A planner in this process and a worker in another, which is started again whenever it has ended."""

    def __init__(self, stage: Stage, database_url: str, directory: Path, policy: str) -> None:
        self.stage, self.deaths = stage, 0
        self._database_url, self._directory = database_url, directory
        self._leader = Leader(stage.database, replace(RULES, policy=policy))
        self._process, self._batch_ids = self._started()

    def serve(self, ids: list[str]) -> None:
        """Serve until every request has ended."""
        eventually(lambda: self._served(ids), within_s=400.0)

    def close(self) -> None:
        self._leader.resign()
        self._batch_ids.close()
        self._process.join(60)

    def _served(self, ids: list[str]) -> bool:
        if not self._process.is_alive():
            self.deaths += 1
            self._batch_ids.close()
            self._process, self._batch_ids = self._started()
        for batch_id, _ in self._leader.step():
            try:
                self._batch_ids.send(batch_id)
            except BrokenPipeError:  # the worker has just died
                break
        return not self.stage.sql("select 1 from requests where finished_at is null and id = any(:ids)", ids=ids)

    def _started(self) -> tuple[ForkServerProcess, Connection]:
        before = self.stage.sql("select started_at from workers")
        receiver, sender = Pipe(duplex=False)
        process = FORK_SERVER.Process(target=serve, args=(self._database_url, self._directory, receiver))
        process.start()
        receiver.close()
        eventually(lambda: self.stage.sql("select started_at from workers") != before, within_s=300.0)
        return process, sender


@pytest.fixture
def one_worker(
    stage: Stage, database_url: str, tmp_path_factory: pytest.TempPathFactory, request
) -> Iterator[OneWorker]:
    directory = tmp_path_factory.getbasetemp() / MODEL
    small_model(directory)
    worker = OneWorker(stage, database_url, directory, request.param)
    yield worker
    worker.close()


SEVERAL_KINDS = pytest.mark.parametrize("one_worker", ["fusion", "baton", "magnus"], indirect=True)


@SEVERAL_KINDS
@pytest.mark.long
@pytest.mark.parametrize(
    ("poison", "code"), [(UNKNOWN_TO_MODEL, "server_error"), (EXHAUSTS, "out_of_memory")], ids=["raises", "exhausts"]
)
def test_what_breaks_the_engine_fails_alone(stage: Stage, one_worker: OneWorker, poison: str, code: str) -> None:
    innocent = [stage.request(f"r{n:02}", input="abcdefgh"[: 1 + n % 8]) for n in range(30)]
    guilty = [stage.request(f"g{n}", input=f"abc{poison}") for n in range(2)]
    one_worker.serve(innocent + guilty)
    outcomes = stage.requests("status", "error->>'code'")
    assert {outcomes[one] for one in innocent} == {("incomplete", None)}
    assert {outcomes[one] for one in guilty} == {("failed", code)}
    attempts = stage.requests("attempts")
    assert {attempts[one] for one in innocent} == {1}
    assert max(attempts[one] for one in guilty) <= math.log2(32) + 2
    assert one_worker.deaths == 0


@SEVERAL_KINDS
@pytest.mark.parametrize("poison", [KILLS, BREAKS_DEVICE], ids=["kills the process", "breaks the device"])
def test_what_ends_the_worker_fails_alone(stage: Stage, one_worker: OneWorker, poison: str) -> None:
    innocent = [stage.request(f"r{n}", input="abcdefgh"[: 1 + n]) for n in range(3)]
    guilty = stage.request("guilty", input=f"abc{poison}")
    one_worker.serve([*innocent, guilty])
    outcomes = stage.requests("status", "error->>'code'", "attempts")
    assert {outcomes[one] for one in innocent} == {("incomplete", None, 1)}
    status, code, attempts = outcomes[guilty]
    assert (status, code) == ("failed", "server_error")
    assert one_worker.deaths <= attempts <= math.log2(4) + 2  # the last death may come just after the last answer

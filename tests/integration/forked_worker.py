"""A planner in the test's process and a worker in one of its own, without a broker between them."""

from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from processes.planner_rules import PlannerRules
from scheduling.sharing.policy_factory import PolicySettings
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage, eventually

RULES = PlannerRules("fusion", PolicySettings(), lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0, resend_s=3600.0)
# Worker processes are forked from one that has imported torch, so that they start at once.
FORK_SERVER = get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.integration.planning.poisoned_worker"])


class OneWorker:
    """A planner in this process and a worker in another, which is started again whenever it has ended."""

    def __init__(self, stage: Stage, policy: str, serve: Callable[..., None], *arguments: object) -> None:
        """The worker's process calls `serve` with the arguments and the end of a pipe that gives it batch ids."""
        self.stage, self.deaths = stage, 0
        self._serve, self._arguments = serve, arguments
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
        process = FORK_SERVER.Process(target=self._serve, args=(*self._arguments, receiver))
        process.start()
        receiver.close()
        eventually(lambda: self.stage.sql("select started_at from workers") != before, within_s=300.0)
        return process, sender

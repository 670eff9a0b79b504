"""A worker's threads as the tests of serving start them: on a real engine with a small model, and a real Postgres."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch

from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel, load_model
from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from inference.prompts.request_tokens import RequestTokens
from inference.serving_engine import ServingEngine
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import WorkerFacts, WorkerReport
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.lease_heartbeat import LeaseTerms
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.results.live_tokens import LiveRows, StepTokens
from tests.integration.database_stage import MODEL, Stage, eventually
from tests.integration.small_model import make_small_model

TERMS = LeaseTerms(lease_s=30.0, heartbeat_s=0.05, stall_s=30.0)


@cache
def small_model(directory: Path, seed: int = 3) -> tuple[LoadedModel, PromptFormat]:
    torch.set_num_threads(1)
    make_small_model(directory, seed)
    return load_model(str(directory)), load_prompt_format(str(directory))


def answer_alone(loaded: LoadedModel, prompt_format: RequestTokens, input: str, limit: int) -> str:
    """What a model generates for a request alone."""
    ids = tuple(prompt_format.encode_request("", input, ()))
    ((row,), _) = Engine(loaded, 10**9).run([DecodingRequest("alone", ids, limit)])
    return prompt_format.decode(row.generated_ids)


class Serving:
    """A started worker with a thread for each batch that it serves, as Celery's pool would give it."""

    def __init__(
        self,
        stage: Stage,
        loaded: LoadedModel,
        prompt_format: RequestTokens,
        kv_tokens: int,
        make_engine: Callable[[], ServingEngine] | None = None,
        report: Callable[[], WorkerReport] = WorkerReport,
        terms: LeaseTerms = TERMS,
        model: str = MODEL,
        name: str = "w1",
        fingerprints: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.stage, self.loaded, self.format, self.name = stage, loaded, prompt_format, name
        self.broken: list[str] = []
        self.steps: list[StepTokens] = []  # the passed-on tokens of rows that somebody reads
        self.live_rows = LiveRows(self.steps.append)
        budget = kv_tokens * loaded.delta_bytes
        self.runner = BatchRunner(
            stage.database,
            ServedModel(
                make_engine or (lambda: Engine(loaded, budget, EngineOptions(prefix_cache=True))),
                prompt_format,
                WorkerFacts(name, model, "cpu", KvMemory(budget, loaded.delta_bytes), fingerprints=dict(fingerprints)),
                report,
            ),
            terms,
            renewals=stage.database.execution_options(isolation_level="AUTOCOMMIT"),
            kick_planner=lambda: None,
            on_broken=self.broken.append,
            live_rows=self.live_rows,
        )
        self.runner.start()
        self._pool = ThreadPoolExecutor(16)

    def assign(self, *ids: str, **columns: object) -> int:
        """Claims a batch of these requests for this worker, as the planner does."""
        columns = {"joins": False, "iteration_limit": None, "preempts": []} | columns
        ((batch_id,),) = self.stage.sql(
            """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, joins,
                iteration_limit, preempts) values (:name, 'test', :size, 1, 1, 1.0, :joins, :iteration_limit, :preempts)
            returning id""",
            name=self.name,
            size=len(ids),
            **columns,
        )
        self.stage.sql(
            """update requests set status = 'in_progress', batch_id = :batch_id, attempts = attempts + 1
            where id = any(:ids)""",
            batch_id=batch_id,
            ids=list(ids),
        )
        return int(batch_id)

    def start(self, batch_id: int) -> Future[None]:
        """Starts a batch, as a message from the broker does."""
        return self._pool.submit(self.runner.serve, batch_id)

    def serve(self, *ids: str, **columns: object) -> int:
        """Assigns a batch of these requests, starts it, and waits for its end."""
        batch_id = self.assign(*ids, **columns)
        self.start(batch_id).result(timeout=60)
        return batch_id

    def running(self, batch_id: int) -> None:
        """Waits until the engine has generated some tokens of this batch."""
        eventually(lambda: self.stage.sql("select 1 from batches where id = :id and progress_tokens > 2", id=batch_id))

    def alone(self, input: str, limit: int) -> str:
        """What the model generates for this request alone."""
        return answer_alone(self.loaded, self.format, input, limit)

    def batch(self, batch_id: int, columns: str = "status") -> object:
        """Returns columns of a batch."""
        ((*row,),) = self.stage.sql(f"select {columns} from batches where id = :id", id=batch_id)
        return row[0] if len(row) == 1 else tuple(row)

    def close(self) -> None:
        self.runner.stop()
        self._pool.shutdown()

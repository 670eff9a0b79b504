"""A worker process without a broker that can load two models; it may die while it loads another one."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from inference.local.engine import Engine
from models.connections.session import make_engine
from models.process_identity import this_process
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import Loadable, WorkerFacts
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.model_in_service import ModelInService
from tasks.serving.results.live_tokens import LiveRows
from tests.integration.serving_worker import TERMS, small_model

SEEDS = {"small": 3, "other": 4}  # of the models' random weights
CHANGE_S = 0.05
KV_TOKENS = 10_000


def serve(database_url: str, directory: Path, dies_once: bool, batch_ids: Connection) -> None:
    """Serve until the other end is closed; with `dies_once` the first change ends the process as `kill -9` does."""
    database = make_engine(database_url)
    renewals = make_engine(database_url, autocommit=True)
    changes = directory / "changes"

    def load(model: str) -> ServedModel:
        if model != "small" and dies_once and not changes.exists():
            changes.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loaded, prompt_format = small_model(directory / model, SEEDS[model])
        budget = KV_TOKENS * loaded.delta_bytes
        curves = ServingCurves((0.0, 0.0, 0.0, 0.001), (0.0, 0.0, 0.0, 0.001))
        loadable = Loadable(CHANGE_S, KvMemory(budget, loaded.delta_bytes, True), curves)
        facts = WorkerFacts(
            "w1",
            model,
            "cpu",
            KvMemory(budget, loaded.delta_bytes),
            instance=this_process(),
            loadable=dict.fromkeys(SEEDS, loadable),
        )
        return ServedModel(lambda: Engine(loaded, budget), prompt_format, facts)

    service = ModelInService(
        "small",
        load,
        lambda served, on_wanted: BatchRunner(
            database,
            served,
            TERMS,
            renewals=renewals,
            kick_planner=lambda: None,
            on_broken=lambda _: os._exit(1),
            live_rows=LiveRows(lambda step: None),
            on_wanted=on_wanted,
        ),
        on_broken=lambda _: os._exit(1),
    )
    service.start()
    with ThreadPoolExecutor(64) as pool:
        try:
            while True:
                pool.submit(service.serve, batch_ids.recv())
        except EOFError:
            service.stop()

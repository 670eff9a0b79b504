"""A worker process without a broker: it serves batches whose ids it receives; prompts with certain letters harm it."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from inference.local.engine import Engine
from models.connections.session import make_engine
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import WorkerFacts
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.results.live_tokens import LiveRows
from tests.integration.database_stage import MODEL
from tests.integration.serving_worker import TERMS, small_model
from tests.integration.small_model import LETTERS

KILLS, BREAKS_DEVICE, EXHAUSTS = "0", "1", "2"  # an unforeseen error: `UNKNOWN_TO_MODEL`
KV_TOKENS = 10_000


class Poisoned:
    """A model's forward pass, harmed by prompts with these letters as a device or the kernel would."""

    def __init__(self, decoder: Any) -> None:
        self._decoder, self._broken = decoder, False
        self._ids = {letter: 2 + LETTERS.index(letter) for letter in (KILLS, BREAKS_DEVICE, EXHAUSTS)}

    def __call__(self, tokens: torch.Tensor, **options: Any) -> Any:
        prompts = set(tokens.flatten().tolist()) if tokens.shape[1] > 1 else set()
        if self._ids[KILLS] in prompts:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._ids[BREAKS_DEVICE] in prompts:
            self._broken = True
        if self._broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        if self._ids[EXHAUSTS] in prompts:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._decoder(tokens, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)


def serve(database_url: str, directory: Path, batch_ids: Connection) -> None:
    """Serve until the other end is closed."""
    loaded, prompt_format = small_model(directory)
    loaded = replace(loaded, decoder=Poisoned(loaded.decoder))
    budget = KV_TOKENS * loaded.delta_bytes
    runner = BatchRunner(
        make_engine(database_url),
        ServedModel(
            lambda: Engine(loaded, budget),
            prompt_format,
            WorkerFacts("w1", MODEL, "cpu", KvMemory(budget, loaded.delta_bytes)),
        ),
        TERMS,
        renewals=make_engine(database_url, autocommit=True),
        kick_planner=lambda: None,
        live_rows=LiveRows(lambda step: None),
        on_broken=lambda _: os._exit(1),
    )
    runner.start()
    with ThreadPoolExecutor(64) as pool:
        try:
            while True:
                pool.submit(runner.serve, batch_ids.recv())
        except EOFError:
            runner.stop()

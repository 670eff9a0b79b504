"""The real engine on a tiny random model without an EOS, so that rows end at their limits; and jobs for it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.kv.kv_budget import COLUMN_STEP
from models.leasing.leases import Lease
from tasks.serving.batches.batch_job import BatchJob
from tests.unit.inference.tiny_models import known

PROMPT = (9, 10) * 20  # two such rows take more than the columns of one step of the cache, one takes less


class FailingDecoder:
    """A model's forward pass that raises a given error once, as a device does; calls `before_pass` before each."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.error: Exception | None = None
        self.before_pass: Callable[[], None] = lambda: None

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.before_pass()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self._decoder(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)


class TinyEngine(Engine):
    """An engine whose cache holds `most_rows` short rows, and whose device can be made to fail."""

    def __init__(self, most_rows: int = 100, model: str = "llama") -> None:
        loaded = known(model).loaded
        self.device = FailingDecoder(loaded.decoder)
        row_bytes = COLUMN_STEP * loaded.delta_bytes
        causal_lm = loaded.model if loaded.fused else self.device
        failing = replace(loaded, eos_ids=frozenset(), decoder=self.device, model=causal_lm)
        super().__init__(failing, most_rows * row_bytes)


def out_of_memory() -> torch.OutOfMemoryError:
    """The error that a device without free memory raises."""
    return torch.OutOfMemoryError("no memory left")


def job(
    batch_id: int,
    *rows: DecodingRequest,
    joins: bool = False,
    iteration_limit: int | None = None,
    preempts: Sequence[str] = (),
    most_rows: int | None = None,
) -> BatchJob:
    return BatchJob(Lease(batch_id, 1), joins, iteration_limit, tuple(preempts), rows, most_rows=most_rows)


def row(id: str, limit: int = 3) -> DecodingRequest:
    return DecodingRequest(id, PROMPT, limit)

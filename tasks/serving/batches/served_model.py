"""A loaded model as a worker's threads serve it, with what the worker registers and reports meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass

from inference.prompts.request_tokens import RequestTokens
from inference.serving_engine import ServingEngine
from scheduling.worker_facts import WorkerFacts, WorkerReport
from tasks.serving.batches.batch_job import PrepareFormat, take_any_format


@dataclass(frozen=True, slots=True)
class ServedModel:
    """How a loaded model is served, what its worker registers, and what its heartbeats report."""

    make_engine: Callable[[], ServingEngine]
    prompt_format: RequestTokens
    facts: WorkerFacts
    report: Callable[[], WorkerReport] = WorkerReport
    prepare_format: PrepareFormat = take_any_format

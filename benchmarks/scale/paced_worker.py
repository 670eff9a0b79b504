"""Runs worker processes with paced engines; a fork after the imports makes each take 30 MiB instead of 70.

    python -m benchmarks.scale.paced_worker --machine v100 --first 0 --workers 32

Needs MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL. Each process does what `magnus worker` does after loading its model.
"""

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import monotonic

import celery.apps.worker
import celery.concurrency.thread
import celery.worker.components
import celery.worker.consumer
import celery.worker.control
import celery.worker.strategy
import click
import kombu.transport.redis
from tokenizers import Tokenizer

from benchmarks.scale.paced_engine import ANSWER_GROWTH, MACHINES, PacedEngine, request_key
from inference.engine_requests import DecodingRequest
from inference.local.costs.cost_counters import StepLog
from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from inference.toy.toy_applications import APPLICATIONS
from processes.celery.celery_app import celery_service
from processes.launch import PR_SET_PDEATHSIG
from scheduling.costs import ProfiledCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import WorkerFacts, WorkerReport
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.batches.serving_costs import LearnedCosts
from tasks.serving.worker_process import prepare_process, serve_until_signal

MAX_POSITIONS = 2048  # Lmax + Gmax of the papers
EOS = 0  # any id works, because the result writer removes an answer's last id
ANY_TOKEN = 10  # every token of an answer of which only the length is known; any id that decodes to some text works
# Celery imports these modules by name when a worker starts. Imported before the fork, all workers share them.
IMPORTED_LATE = (
    celery.apps.worker,
    celery.concurrency.thread,
    celery.worker.components,
    celery.worker.consumer,
    celery.worker.control,
    celery.worker.strategy,
    kombu.transport.redis,
)
OF_INSTRUCTION = {application.instruction: application for application in APPLICATIONS.values()}


def right_answer(
    tokenizer: Tokenizer, known: Mapping[str, int], growth: float, sequence: DecodingRequest
) -> tuple[int, ...]:
    """Return the answer with its EOS: a toy request's own, or ANY_TOKEN in the known length of another request's.

    An unknown request gets only an EOS.
    """
    contents = dict(sequence.turns)
    instruction, text = contents.get("system", ""), contents.get("user", "")
    application = OF_INSTRUCTION.get(instruction)
    if application is not None:
        ids = tokenizer.encode(application.answer(text.split()), add_special_tokens=False).ids
    else:
        ids = [ANY_TOKEN] * (known.get(request_key(instruction, text), 1) - 1)
    longer = round(growth * len(ids))
    return (*islice(cycle(ids), longer), EOS) if ids else (EOS,)


def run(
    name: str,
    kind: str,
    headroom: float,
    prompt_format: PromptFormat,
    answer: Callable[[DecodingRequest], tuple[int, ...]],
) -> int:
    """Run one worker until SIGTERM or SIGINT; returns the exit status of the process."""
    service = prepare_process(name)
    machine, steps = MACHINES[kind], StepLog()
    costs = LearnedCosts(steps.take, machine.curves)
    facts = WorkerFacts(
        name=name,
        model=service.settings.model_name or prompt_format.name,
        device=f"paced {kind}",
        memory=KvMemory(machine.memory.theta_bytes, machine.memory.delta_bytes),
        curves=ProfiledCurves(machine.curves, quick=True),
    )
    served = ServedModel(
        lambda: PacedEngine(machine, answer, MAX_POSITIONS, steps, headroom=headroom),
        prompt_format,
        facts,
        report=lambda: WorkerReport(curves=costs.curves(monotonic())),
    )
    return serve_until_signal(service, name, lambda _: served)


@click.command()
@click.option("--machine", type=click.Choice(sorted(MACHINES)), default="v100", show_default=True)
@click.option("--first", default=0, show_default=True, help="Number of the first worker, part of its name.")
@click.option("--workers", default=1, show_default=True, help="Worker processes.")
@click.option("--headroom", default=0.0, show_default=True, help="Memory beyond Θ, as a share of Θ.")
@click.option("--answers", type=click.Path(exists=True, path_type=Path), help="Lengths of answers, by request_key.")
def main(machine: str, first: int, workers: int, headroom: float, answers: Path | None) -> None:
    """Run workers until a signal comes."""
    service = celery_service()
    service.app.loader.import_default_modules()
    prompt_format = load_prompt_format(service.settings.model)
    tokenizer = Tokenizer.from_file(str(Path(service.settings.model) / "tokenizer.json"))
    known = json.loads(answers.read_text()) if answers else {}
    answer = partial(right_answer, tokenizer, known, ANSWER_GROWTH.get(machine, 1.0))
    children: list[int] = []
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would write to pages that all processes share
    for number in range(first, first + workers):
        child = os.fork()  # no thread or connection exists yet
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            sys.exit(run(f"paced-{number}", machine, headroom, prompt_format, answer))
        children.append(child)

    def stop(*_: object) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Requests that break an engine: one that raises, one that kills the process, and answers that exceed the memory."""

import json
import math
import shutil
import signal
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.exactly_once import verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.recording_client import bodies, client_of
from benchmarks.chaos.service_under_test import ServiceUnderTest, service_under_test
from benchmarks.harness import in_thread
from inference.toy.toy_applications import toy_requests
from settings import BUNDLED_MODEL

POISON = "xyzzypoison"
PATIENCE_S = 180.0


def poison(directory: Path, size: Size) -> list[Row]:
    """Serve a row that raises in the engine, under a continuous policy and under one that runs batches to completion.

    The model is faulty: its tokenizer has a token that its embedding table lacks. Looking this token up
    raises on a CPU; on a CUDA device it trips an assertion, after which no kernel runs there.
    """
    model = directory / "model"
    shutil.copytree(BUNDLED_MODEL, model)
    _add_token_beyond_the_vocabulary(model)
    rows = []
    for policy in size.poison_policies:
        options = ("--model", str(model), "--policy", policy)
        with service_under_test(directory / policy, *options, environment={"MAGNUS_MODEL_NAME": "bundled"}) as service:
            poisoned = {"input": f"apple {POISON} river", "instructions": "Repeat the text."}
            rows.append(
                _isolated(service, f"poison that raises, {policy}", poisoned, size.poison_mates, with_kills=False)
            )
            if policy == size.poison_policies[-1]:
                long = {"input": " ".join(["apple river cloud stone"] * 12), "instructions": "Write each word twice."}
                rows.append(
                    _isolated(
                        service, f"poison that kills the process, {policy}", long, size.poison_mates, with_kills=True
                    )
                )
    return rows


def _isolated(
    service: ServiceUnderTest, promise: str, poisoned: dict[str, Any], mates: int, *, with_kills: bool
) -> Row:
    """Submit the poisoned request among ordinary ones; `with_kills` its worker is killed whenever it runs."""
    work = bodies(mates, seed=12)
    work.insert(mates // 2, {**poisoned, "metadata": {"application": "poison"}})
    last = service.value("select coalesce(max(id), 0) from batches")
    with ExitStack() as stack:
        client = stack.enter_context(client_of(service))
        if with_kills:
            stack.enter_context(in_thread(partial(kill_whoever_runs, service)))
        ids = client.submit_all(work)
        guilty = ids[mates // 2]
        service.answered_within(PATIENCE_S)
    if guilty is None:
        return Row(promise, "accepted", "the poison was refused at the API", False)
    beside = verdict(service, [other for other in client.accepted if other != guilty])
    ((status, attempts, error),) = service.sql(
        "select status, attempts, error->>'message' from requests where id = :id", id=guilty
    )
    largest = service.value("select coalesce(max(size), 1) from batches where id > :last", last=last)
    bound = math.floor(math.log2(max(largest, 1))) + 2
    ok = status == "failed" and attempts <= bound and beside.completed == beside.accepted and beside.most_attempts == 1
    measured = (
        f"{status} after {attempts} attempts ({(error or 'no error')[:80]}); mates: {beside.completed} of "
        f"{beside.accepted} answered, most attempts {beside.most_attempts}"
    )
    return Row(promise, f"fails within log2({largest})+2 = {bound} attempts, mates uncharged", measured, ok)


def kill_whoever_runs(service: ServiceUnderTest, ended: threading.Event) -> None:
    """Kill (SIGKILL) whichever worker runs a batch with a request of the application `poison`, once for each batch."""
    runs = """select b.worker, b.id from batches b join requests r on r.batch_id = b.id
        where r.application = 'poison' and r.status = 'in_progress' and b.status = 'running'"""
    killed: set[int] = set()
    while not ended.wait(0.02):
        for worker, batch in service.sql(runs):
            if batch not in killed:
                killed.add(batch)
                with suppress(psutil.NoSuchProcess):
                    service.signal(worker, signal.SIGKILL)


def _add_token_beyond_the_vocabulary(model: Path) -> None:
    """Add a token to the tokenizer for which the model has no embedding."""
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"].append({"id": vocabulary, "content": POISON, **flags})
    path.write_text(json.dumps(tokenizer))


def out_of_memory(directory: Path, size: Size) -> list[Row]:
    """Serve rows in a small KV cache whose answers are longer than all earlier answers of their application."""
    environment = {"MAGNUS_MAX_PROMPT_TOKENS": "128", "MAGNUS_MAX_OUTPUT_TOKENS": "256"}
    options = ("--policy", "magnus", "--kv-budget", "2MiB")
    with (
        service_under_test(directory / "state", *options, environment=environment) as service,
        client_of(service) as client,
    ):
        metadata = {"application": "one"}
        short = toy_requests(60, 14, median_words=25, applications=["classify"])
        long = toy_requests(60, 15, median_words=25, applications=["double"])
        for kind in (short, long):
            client.submit_all([{"input": r.input, "instructions": r.instruction, "metadata": metadata} for r in kind])
            time.sleep(1.0)
            service.answered_within(PATIENCE_S)
        ran_out = service.value("select count(*) from batches where status = 'out_of_memory'")
        found = verdict(service, client.accepted)
    measured = f"{ran_out} batches split, {found.completed} of {found.accepted} answered, {found.failed} failed"
    ok = ran_out > 0 and found.completed == found.accepted
    return [Row("out of memory in the KV cache", "split, every request answered", measured, ok)]

"""The peers of the live benchmark: other ways to serve the requests that our web process stored.

Each peer takes requests first come, first served from the same Postgres, writes its answers there, and runs the same
model: `celery` (one Celery task for each request, no batching), `window` (fixed-size batches by time window through
`model.generate`) and `generate_batch` (transformers' continuous batching).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import click
import torch
from celery import Celery
from sqlalchemy import text
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from inference.local.kv.kv_budget import kv_budget_bytes
from inference.local.loading.model_loading import load_model
from inference.prompts.prompt_format import load_prompt_format
from models.connections.session import make_engine
from settings import read_settings

CLAIM = text("""
    update requests set status = 'in_progress', started_at = clock_timestamp()
    where id in (
        select id from requests where status = 'queued' order by arrived_at limit :limit for update skip locked
    )
    returning id, instructions, input, limit_tokens
""")

ANSWER = text("""
    update requests r set status = 'completed', output_text = a.output, output_tokens = a.tokens, finish_reason = 'eos',
        finished_at = clock_timestamp()
    from unnest(cast(:ids as text[]), cast(:outputs as text[]), cast(:tokens as int[])) as a (id, output, tokens)
    where r.id = a.id
""")


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request that a peer has claimed."""

    id: str
    instructions: str
    input: str
    limit: int


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The answer to a claimed request."""

    id: str
    output: str
    tokens: int


class PeerStore:
    """Claims requests from the database and writes their answers."""

    def __init__(self, database_url: str) -> None:
        self._engine = make_engine(database_url, pool_size=2, name="benchmark peer")

    def claim(self, limit: int) -> list[PeerRequest]:
        """Claim at most `limit` queued requests, the oldest first."""
        with self._engine.begin() as connection:
            return [PeerRequest(*row) for row in connection.execute(CLAIM, {"limit": limit})]

    def answer(self, answers: Sequence[PeerAnswer]) -> None:
        """Write answers and complete their requests."""
        columns = {
            "ids": [answer.id for answer in answers],
            "outputs": [answer.output for answer in answers],
            "tokens": [answer.tokens for answer in answers],
        }
        with self._engine.begin() as connection:
            connection.execute(ANSWER, columns)


WINDOW_S = 0.05  # the longest wait for a full batch; a larger value makes fuller batches and later answers; not tuned
WINDOW_SIZE = 10  # the size by Magnus Eq. (1) at Lmax = Gmax = 1024 in the default CPU budget, the same as for `vs`
POLL_S = 0.01  # seconds between two queries for requests; any value well below a batch's time works
PAGE_TOKENS = 32  # one of the fastest page sizes on a CPU, see `benchmarks.engines.compared_engines`
BATCH_TOKENS = 512  # the largest batch that was tried there
MAX_ROWS = 64  # more rows do not make `generate_batch` faster: the cost of its steps grows with the rows


class PeerModel:
    """The served model, called through `model.generate`."""

    def __init__(self, model: str, kv_budget: str) -> None:
        """Load the model; `kv_budget` is written as our workers' setting MAGNUS_KV_BUDGET."""
        loaded = load_model(model)
        self.budget_bytes = kv_budget_bytes(kv_budget, loaded.device)
        # Our engine may have changed the weights that it loaded to a layout that transformers cannot read.
        plain = AutoModelForCausalLM.from_pretrained(model, dtype=loaded.model.dtype, trust_remote_code=False).eval()
        self.loaded, self.prompts = replace(loaded, model=plain), load_prompt_format(model)

    @torch.inference_mode()
    def generate(self, requests: Sequence[PeerRequest]) -> list[PeerAnswer]:
        """Run one padded batch to completion; returns its answers."""
        prompts = [self.prompts.encode(each.instructions, each.input) for each in requests]
        longest = max(map(len, prompts))
        pad_id = self.loaded.pad_id
        ids = torch.tensor([[pad_id] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        limit = max(each.limit for each in requests)
        output = self.loaded.model.generate(ids, attention_mask=mask, max_new_tokens=limit, do_sample=False)
        return [self.answer_of(each, row) for each, row in zip(requests, output[:, longest:].tolist(), strict=True)]

    def answer_of(self, request: PeerRequest, generated: Sequence[int]) -> PeerAnswer:
        """Cut the generated tokens at EOS or the limit, and decode them."""
        ends = [index for index, token in enumerate(generated) if token in self.loaded.eos_ids]
        tokens = list(generated[: min(ends[0] + 1 if ends else len(generated), request.limit)])
        return PeerAnswer(request.id, self.prompts.decode(tokens), len(tokens))


def one_by_one(store: PeerStore, model: PeerModel, request: PeerRequest) -> None:
    """Serve one request alone."""
    store.answer(model.generate([request]))


def windows(store: PeerStore, model: PeerModel) -> None:
    """Serve fixed-size batches in order of arrival; a batch that is not full waits for `WINDOW_S`."""
    while True:
        requests = store.claim(WINDOW_SIZE)
        if requests and len(requests) < WINDOW_SIZE:
            time.sleep(WINDOW_S)
            requests += store.claim(WINDOW_SIZE - len(requests))
        if requests:
            store.answer(model.generate(requests))
        else:
            time.sleep(POLL_S)


def continuous(store: PeerStore, model: PeerModel) -> None:
    """Serve by transformers' continuous batching with a worker's KV budget, at most `MAX_ROWS` requests at once."""
    tokens = GenerationConfig(do_sample=False, eos_token_id=sorted(model.loaded.eos_ids), pad_token_id=0)
    paged = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=model.budget_bytes // model.loaded.delta_bytes // PAGE_TOKENS,
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=MAX_ROWS,
        allow_block_sharing=False,
    )
    manager = model.loaded.model.init_continuous_batching(generation_config=tokens, continuous_batching_config=paged)
    manager.start()
    running: dict[str, PeerRequest] = {}
    try:
        while True:
            for request in store.claim(MAX_ROWS - len(running)) if len(running) < MAX_ROWS else ():
                prompt = model.prompts.encode(request.instructions, request.input)
                running[manager.add_request(prompt, max_new_tokens=request.limit)] = request
            finished = []
            result = manager.get_result(timeout=POLL_S)
            while result is not None:
                if result.is_finished():
                    finished.append(model.answer_of(running.pop(result.request_id), result.generated_tokens))
                result = manager.get_result(timeout=0.0001)
            if finished:
                store.answer(finished)
            if not manager.is_running():
                raise RuntimeError("the generation thread of generate_batch ended")
    finally:
        manager.stop(block=True)


PUBLISHED_AT_ONCE = 100  # the requests claimed in one transaction; any value that keeps the transaction short works

settings = read_settings()
app = Celery("peer", broker=settings.redis_url)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1, task_default_queue="peer")


@app.task(name="peer.answer")  # type: ignore[untyped-decorator]  # celery is untyped
def answer(id: str, instructions: str, input: str, limit: int) -> None:
    """Generate one answer and store it."""
    store, model = _store_and_model()
    one_by_one(store, model, PeerRequest(id, instructions, input, limit))


def publish(store: PeerStore) -> None:
    """Publish a task for each queued request, without end."""
    while True:
        claimed = store.claim(PUBLISHED_AT_ONCE)
        for each in claimed:
            answer.apply_async((each.id, each.instructions, each.input, each.limit))
        if not claimed:
            time.sleep(POLL_S)


@cache
def _store_and_model() -> tuple[PeerStore, PeerModel]:
    return PeerStore(str(settings.database_url)), PeerModel(settings.model, settings.kv_budget)


@click.command()
@click.argument("kind", type=click.Choice(["publish", "window", "generate_batch"]))
def main(kind: str) -> None:
    """Run one process of a peer until it is stopped by a signal."""
    store = PeerStore(str(settings.database_url))
    if kind == "publish":
        publish(store)
    else:
        serve = {"window": windows, "generate_batch": continuous}[kind]
        serve(store, PeerModel(settings.model, settings.kv_budget))


if __name__ == "__main__":
    main()

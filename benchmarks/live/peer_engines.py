"""How the peers of the live benchmark generate: with transformers' own engines."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.live.peer_store import PeerAnswer, PeerRequest, PeerStore
from inference.local.kv_budget import kv_budget_bytes
from inference.local.model_loading import load_model
from inference.prompt_format import load_prompt_format

WINDOW_S = 0.05  # how long a batch waits to fill; longer makes fuller batches and later answers, not tuned
WINDOW_SIZE = 10  # what Magnus Eq. (1) allows at Lmax = Gmax = 1024 in the default CPU budget, as for `vs`
POLL_S = 0.01  # between two looks for requests; any value well below a batch's time does
PAGE_TOKENS = 32  # one of the fastest on a CPU, see `benchmarks.engines.transformers_engines`
BATCH_TOKENS = 512  # the largest of those tried there
MAX_ROWS = 64  # more do not make it faster: the cost of its steps grows with the rows


class PeerModel:
    """The served model, called through `model.generate`."""

    def __init__(self, model: str, kv_budget: str) -> None:
        """`kv_budget`: as of our workers."""
        loaded = load_model(model)
        self.budget_bytes = kv_budget_bytes(kv_budget, loaded.device)
        # our engine may have taken the weights of its own copy into a layout that transformers cannot read
        plain = AutoModelForCausalLM.from_pretrained(model, dtype=loaded.model.dtype).eval()
        self.loaded, self.prompts = replace(loaded, model=plain), load_prompt_format(model)

    @torch.inference_mode()
    def generate(self, requests: Sequence[PeerRequest]) -> list[PeerAnswer]:
        """One padded batch, run to completion."""
        prompts = [self.prompts.encode(each.instructions, each.input) for each in requests]
        longest = max(map(len, prompts))
        pad_id = self.loaded.pad_id
        ids = torch.tensor([[pad_id] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        limit = max(each.limit for each in requests)
        output = self.loaded.model.generate(ids, attention_mask=mask, max_new_tokens=limit, do_sample=False)
        return [self.answer_of(each, row) for each, row in zip(requests, output[:, longest:].tolist(), strict=True)]

    def answer_of(self, request: PeerRequest, generated: Sequence[int]) -> PeerAnswer:
        """The answer up to its EOS or its limit."""
        ends = [index for index, token in enumerate(generated) if token in self.loaded.eos_ids]
        tokens = list(generated[: min(ends[0] + 1 if ends else len(generated), request.limit)])
        return PeerAnswer(request.id, self.prompts.decode(tokens), len(tokens))


def one_by_one(store: PeerStore, model: PeerModel, request: PeerRequest) -> None:
    """Serve one request alone."""
    store.answer(model.generate([request]))


def windows(store: PeerStore, model: PeerModel) -> None:
    """Fixed-size batches in order of arrival; a batch that is not full waits for `WINDOW_S`."""
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
    """transformers' continuous batching with the KV budget of a worker, at most `MAX_ROWS` requests at once."""
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

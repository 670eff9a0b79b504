"""How the peers of the live benchmark generate: transformers as its users run it."""

import time
from collections.abc import Sequence

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.live.peer_store import PeerAnswer, PeerRequest, Store
from inference.local.model_loading import load_model
from inference.prompt_format import load_prompt_format

WINDOW_S = 0.05  # how long a fixed-size batch waits to fill
WINDOW_SIZE = 10  # what Eq. (1) allows at Lmax = Gmax = 1024 in the default CPU budget: vs has the same
POLL_S = 0.01
WORKER_BUDGET_BYTES = 64 * 2**20
PAGE_TOKENS = 32
BATCH_TOKENS = 512
SLOTS = 64  # more does not help it: its step costs grow with the rows


class Answers:
    """A model behind `model.generate`."""

    def __init__(self, model: str) -> None:
        self.loaded, self.prompts = load_model(model), load_prompt_format(model)

    @torch.inference_mode()
    def generate(self, asked: Sequence[PeerRequest]) -> list[PeerAnswer]:
        """One padded batch, run to completion."""
        prompts = [self.prompts.encode(each.instructions, each.input) for each in asked]
        longest = max(map(len, prompts))
        pad_id = self.loaded.pad_id
        ids = torch.tensor([[pad_id] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        limit = max(each.limit for each in asked)
        output = self.loaded.model.generate(ids, attention_mask=mask, max_new_tokens=limit, do_sample=False)
        return [self.answered(each, row) for each, row in zip(asked, output[:, longest:].tolist(), strict=True)]

    def answered(self, asked: PeerRequest, generated: Sequence[int]) -> PeerAnswer:
        """The answer up to its end of sequence or its limit."""
        ends = [place for place, token in enumerate(generated) if token in self.loaded.eos_ids]
        tokens = list(generated[: min(ends[0] + 1 if ends else len(generated), asked.limit)])
        return PeerAnswer(asked.id, self.prompts.decode(tokens), len(tokens))


def one_by_one(store: Store, answers: Answers, asked: PeerRequest) -> None:
    """Serve one request alone."""
    store.answer(answers.generate([asked]))


def windows(store: Store, answers: Answers) -> None:
    """Fixed-size batches in order of arrival; a batch that is not full waits for `WINDOW_S`."""
    while True:
        asked = store.claim(WINDOW_SIZE)
        if asked and len(asked) < WINDOW_SIZE:
            time.sleep(WINDOW_S)
            asked += store.claim(WINDOW_SIZE - len(asked))
        if asked:
            store.answer(answers.generate(asked))
        else:
            time.sleep(POLL_S)


def continuous(store: Store, answers: Answers) -> None:
    """transformers' continuous batching with the KV budget of a worker; it is handed what it has a slot for."""
    model, budget = answers.loaded.model, WORKER_BUDGET_BYTES
    tokens = GenerationConfig(do_sample=False, eos_token_id=sorted(answers.loaded.eos_ids), pad_token_id=0)
    paged = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=budget // answers.loaded.delta_bytes // PAGE_TOKENS,
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=SLOTS,
        allow_block_sharing=False,
    )
    manager = model.init_continuous_batching(generation_config=tokens, continuous_batching_config=paged)
    manager.start()
    running: dict[str, PeerRequest] = {}
    try:
        while True:
            for asked in store.claim(SLOTS - len(running)) if len(running) < SLOTS else ():
                prompt = answers.prompts.encode(asked.instructions, asked.input)
                running[manager.add_request(prompt, max_new_tokens=asked.limit)] = asked
            finished = []
            result = manager.get_result(timeout=POLL_S)
            while result is not None:
                if result.is_finished():
                    finished.append(answers.answered(running.pop(result.request_id), result.generated_tokens))
                result = manager.get_result(timeout=0.0001)
            if finished:
                store.answer(finished)
            if not manager.is_running():
                raise RuntimeError("the generation thread of generate_batch ended")
    finally:
        manager.stop(block=True)

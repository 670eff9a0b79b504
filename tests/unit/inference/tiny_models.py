"""Tiny models with random weights, and what `model.generate` answers to each prompt alone."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.loading.model_loading import LoadedModel, load_model, prepare_model
from inference.prompts.prompt_format import load_prompt_format
from inference.toy.toy_applications import toy_requests
from settings import BUNDLED_MODEL

torch.set_num_threads(1)  # a tiny matrix is not worth a second thread

VOCABULARY, POSITIONS, ANSWER, EOS = 61, 128, 20, 7
AMPLE = 2**24  # bytes of KV cache that no test fills
MARGIN = 1e-3  # the likeliest token leads by this much, so that no rounding can change an answer


class Letters:
    """A tokenizer whose tokens are letters: id 3 is `d`."""

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(chr(ord("a") + token) for token in token_ids)


@dataclass(frozen=True)
class Answered:
    """A prompt with the tokens that `generate` gives it alone, up to EOS or ANSWER tokens."""

    prompt_ids: tuple[int, ...]
    answer: tuple[int, ...]

    def sequence(self, id: str, limit: int = ANSWER, **options) -> DecodingRequest:
        return DecodingRequest(id, self.prompt_ids, limit, **options)

    def up_to(self, limit: int) -> tuple[int, ...]:
        return self.answer[:limit]


@dataclass(frozen=True)
class Known:
    """A served model and prompts whose answers are known."""

    loaded: LoadedModel
    pool: tuple[Answered, ...]


SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
}

MAKERS: dict[str, Callable[..., Any]] = {
    "llama": lambda **options: LlamaForCausalLM(
        LlamaConfig(**SHAPE | options, num_key_value_heads=2, initializer_range=0.4)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=POSITIONS,
            initializer_range=0.4,
            bos_token_id=None,
            eos_token_id=None,
        )
    ),
    "neox": lambda **options: GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE | options, initializer_range=0.4)),
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**SHAPE, num_key_value_heads=1, sliding_window=None, initializer_range=0.4)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=4, initializer_range=0.4)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16, initializer_range=0.4)),
}


def random_prompts() -> Iterator[tuple[int, ...]]:
    """Prompts of 1 to 40 random tokens."""
    rng = random.Random(5)
    while True:
        yield tuple(rng.randrange(8, VOCABULARY) for _ in range(rng.randint(1, 40)))


def toy_prompts() -> Iterator[tuple[int, ...]]:
    """Prompts as the bundled model was trained on."""
    encode = load_prompt_format(str(BUNDLED_MODEL)).encode
    return (tuple(encode(request.instruction, request.input)) for request in toy_requests(100, seed=5))


def answers(loaded: LoadedModel, prompts: Iterator[tuple[int, ...]], size: int) -> tuple[Answered, ...]:
    """The first prompts that `generate` answers with a clear margin at each token."""
    pool: list[Answered] = []
    while len(pool) < size:
        prompt = next(prompts)
        answer, leads = answered_alone(loaded.model, prompt, ANSWER)
        if leads.min() > MARGIN:
            pool.append(Answered(prompt, answer))
    return tuple(pool)


def answered_alone(
    model: Any, prompt: tuple[int, ...], limit: int, **options: Any
) -> tuple[tuple[int, ...], torch.Tensor]:
    """What `generate` answers to a prompt alone, and by how much the likeliest token leads at each step."""
    output = model.generate(
        torch.tensor([prompt], device=model.device),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=model.device),
        max_new_tokens=limit,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    best, second = torch.stack(output.logits).float().topk(2).values.unbind(-1)
    return tuple(output.sequences[0, len(prompt) :].tolist()), (best - second).flatten()


@cache
def known(architecture: str) -> Known:
    """A model of this architecture with random weights, or the bundled one."""
    if architecture == "bundled":
        bundled = load_model(str(BUNDLED_MODEL))
        return Known(bundled, answers(bundled, toy_prompts(), 8))
    torch.manual_seed(11)
    model = MAKERS[architecture]()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = EOS, 0
    loaded = prepare_model(model, Letters(), architecture)
    return Known(loaded, answers(loaded, random_prompts(), 8))


def drain(engine: Engine) -> dict[str, FinishedRow]:
    """Step until no row runs; returns the finished rows by id."""
    done: dict[str, FinishedRow] = {}
    while engine.rows:
        done |= {row.id: row for row in engine.step()}
    return done

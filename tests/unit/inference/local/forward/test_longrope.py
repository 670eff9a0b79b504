"""Rows of a model with longrope choose their frequencies by their own lengths."""

import random
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.forward.longrope import Longrope
from inference.local.loading.model_loading import prepare_model
from tests.unit.inference.pretended_device import DEVICE, PretendedDevice
from tests.unit.inference.tiny_models import AMPLE, SHAPE, Letters, answers, drain

ORIGINAL = 24
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 3.0, 8.0, 16.0],
    "original_max_position_embeddings": ORIGINAL,
}


def model(architecture):
    torch.manual_seed(11)
    options = {**SHAPE, "num_key_value_heads": 2, "initializer_range": 0.4, "rope_parameters": dict(ROPE)}
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**options))
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    config = Phi3Config(**options, **ids, sliding_window=None, original_max_position_embeddings=ORIGINAL)
    return Phi3ForCausalLM(config)


@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_rows_before_beyond_and_across_the_original_context_answer_as_alone(architecture):
    loaded = replace(prepare_model(model(architecture), Letters(), architecture), eos_ids=frozenset())
    rng = random.Random(3)
    lengths = [3, ORIGINAL + 20, ORIGINAL - 6, ORIGINAL]
    prompts = [tuple(rng.randrange(8, 61) for _ in range(lengths[n % 4])) for n in range(80)]
    pool = answers(loaded, iter(prompts), 5)
    sequences = [known.sequence(str(n)) for n, known in enumerate(pool)]
    expected = {str(n): known.answer for n, known in enumerate(pool)}
    results, _ = Engine(loaded, AMPLE).run(sequences)
    assert {row.id: row.generated_ids for row in results} == expected
    engine = Engine(loaded, AMPLE)
    engine.insert(sequences)
    done: dict[str, FinishedRow] = {}
    for _ in range(12):
        done |= {row.id: row for row in engine.step()}
    engine.insert([engine.preempt(name) for name in engine.rows])
    done |= drain(engine)
    assert {name: row.generated_ids for name, row in done.items()} == expected
    in_pieces = Engine(loaded, AMPLE, EngineOptions(prefill_tokens=7))
    for sequence in sequences:
        in_pieces.insert([sequence])
    assert {row.id: row.generated_ids for row in drain(in_pieces).values()} == expected


def test_a_row_is_computed_again_only_when_it_passes_the_original_context_of_such_a_family():
    again = Longrope(ORIGINAL, computes_again=True)
    assert again.passes_now(prompt_tokens=3, cached_tokens=ORIGINAL)
    assert not again.passes_now(3, ORIGINAL - 1)
    assert not again.passes_now(3, ORIGINAL + 1)
    assert not again.passes_now(ORIGINAL + 1, ORIGINAL + 1)
    assert not Longrope(ORIGINAL, computes_again=False).passes_now(3, ORIGINAL)


def test_a_step_on_a_device_chooses_by_the_lengths_that_are_there():
    def rotation(x, position_ids):  # the long frequencies, if some row of the batch is long
        chosen = torch.full_like(position_ids, 2) if position_ids.max() >= ORIGINAL else torch.ones_like(position_ids)
        return chosen[..., None], chosen[..., None]

    rotate = Longrope(ORIGINAL, computes_again=False).per_row(rotation)
    with PretendedDevice() as device:
        of_rows = torch.tensor([[3], [ORIGINAL], [ORIGINAL - 1]]).to(DEVICE, non_blocking=True)
        cos, sin = rotate(of_rows, of_rows)
        device.moved.clear()
        assert cos.cpu().flatten().tolist() == sin.cpu().flatten().tolist() == [1, 2, 1]


def test_prompts_that_ask_for_log_probabilities_are_prefilled_by_their_own_length():
    loaded = prepare_model(model("llama"), Letters(), "llama")
    prompts = [tuple(range(8, 14)), tuple(8 + n % 40 for n in range(ORIGINAL + 10))]

    def logprobs(those):
        asked = [DecodingRequest(str(n), p, 2, top_logprobs=0, prompt_logprobs=True) for n, p in enumerate(those)]
        return [[one.logprob for one in row.prompt_logprobs] for row in Engine(loaded, AMPLE).run(asked)[0]]

    assert logprobs(prompts) == [*logprobs(prompts[:1]), *logprobs(prompts[1:])]

"""The enlarged model against the one that it was made from."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.inputs.changed_models import ModelSize, enlarged_model, kv_growth
from inference.local.loading.cache_layout import served_layout
from inference.prompts.prompt_format import load_prompt_format
from inference.toy.toy_applications import APPLICATIONS, draw_request
from settings import BUNDLED_MODEL


@pytest.mark.parametrize(("size", "parameters"), [("8x", 5.9e6), ("20x", 14.9e6), ("35x", 26.3e6)])
@torch.inference_mode()
def test_it_has_more_parameters_and_gives_the_same_answers(size: ModelSize, parameters: float, tmp_path):
    prompts, rng = load_prompt_format(str(BUNDLED_MODEL)), random.Random(0)
    drawn = [draw_request(application, 6, rng) for application in APPLICATIONS]
    directories = (BUNDLED_MODEL, enlarged_model(size, tmp_path))
    small, large = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in directories)
    assert large.num_parameters() == pytest.approx(parameters, rel=0.02)
    assert served_layout(large, "")[0].token_bytes == kv_growth(size) * served_layout(small, "")[0].token_bytes
    for request in drawn:
        ids = torch.tensor([prompts.encode(request.instruction, request.input)])
        answered = small.generate(ids, max_new_tokens=40, do_sample=False)
        likeliest = large(answered).logits[0, ids.shape[1] - 1 : -1].argmax(-1)  # greedy: each token after those before
        assert likeliest.tolist() == answered[0, ids.shape[1] :].tolist()

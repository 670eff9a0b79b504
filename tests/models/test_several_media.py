"""A directory of a model for several media is served for text, as its own `generate` answers each prompt alone."""

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from inference.engine_requests import DecodingRequest
from inference.local.loading.checkpoint import read_checkpoint
from inference.local.loading.model_loading import prepare_model
from inference.local.loading.model_outline import outline_model
from settings import BUNDLED_MODEL
from tests.models.tiny_families import prompts, shaken, sized
from tests.models.ways_of_serving import ANSWER, WAYS, answers_alone
from tests.unit.inference.tiny_models import Letters

CPU = torch.device("cpu")
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 40}
SMALL = {"depth": 1, "num_hidden_layers": 1, "hidden_size": 32, "num_heads": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 64, "patch_size": 14, "image_size": 28}
OF_QWEN = SMALL | {"out_hidden_size": 32, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}

MEDIA: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama4": ("llama4_text", {"floor_scale": 16, "attn_scale": 0.5}, SMALL | {"vision_output_dim": 32}),
    "mistral3": ("mistral", {"sliding_window": None}, SMALL | {"model_type": "pixtral"}),
    "mistral3, as Ministral 3": (
        "ministral3",
        {"sliding_window": None, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.5}},
        SMALL | {"model_type": "pixtral"},
    ),
    "qwen2_5_vl": ("qwen2_5_vl_text", {"rope_parameters": MROPE}, OF_QWEN),
    "qwen3_vl": ("qwen3_vl_text", {"rope_parameters": MROPE}, OF_QWEN),
}
FAST = ("llama4", "mistral3")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.long) for name in MEDIA])
def test_its_text_is_answered_as_the_whole_model_answers_it(name, tmp_path):
    text_type, options, vision = MEDIA[name]
    text = sized(text_type, options)
    torch.manual_seed(7)
    of_text = AutoConfig.for_model(text_type, **text).to_dict()
    config = AutoConfig.for_model(name.partition(",")[0], text_config=of_text, vision_config=vision)
    whole = shaken(AutoModelForImageTextToText.from_config(config, dtype=torch.float32))
    alone = answers_alone(whole, prompts())
    assert len({token for each in alone for token in each.answer}) > 10
    whole.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / file, tmp_path / file)
    outline = outline_model(str(tmp_path), CPU, "float32")
    loaded = prepare_model(read_checkpoint(str(tmp_path), CPU, "float32", None), Letters(), name)
    assert outline.layout.shapes == loaded.layout.shapes
    assert loaded.fused == (name == "mistral3")
    sequences = [DecodingRequest(str(row), each.prompt_ids, ANSWER) for row, each in enumerate(alone)]
    for way in WAYS:
        answers = way(replace(loaded, eos_ids=frozenset()), sequences)
        assert [answers[str(row)][: len(each.answer)] for row, each in enumerate(alone)] == [
            each.answer for each in alone
        ], way.__name__

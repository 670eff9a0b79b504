"""Rows of a model and of three adapters beside it, served together, are answered as peft's `generate` answers each."""

from copy import deepcopy
from dataclasses import replace

import pytest
from peft import PeftModel

from inference.engine_requests import DecodingRequest
from inference.local.loading.model_loading import add_adapters, prepare_model
from inference.model_directory.adapter_files import read_adapters
from tests.models.tiny_adapters import KINDS, write_adapters
from tests.models.tiny_families import Family, prompts, tiny_model
from tests.models.ways_of_serving import ANSWER, WAYS, answers_alone
from tests.unit.inference.tiny_models import Letters

# peft asks the model for a property that transformers renames
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

CONV = {
    "narrow": {"r": 4, "fan_in_fan_out": True, "target_modules": ["c_attn"]},
    "wide": {"r": 8, "fan_in_fan_out": True, "target_modules": ["c_proj", "c_fc"]},
}
WINDOWED_QWEN3 = Family("Qwen3", "qwen3", {"use_sliding_window": True, "max_window_layers": 2})
UNTIED = {"num_hidden_layers": 6, "tie_word_embeddings": False}
SCALED_LLAMA4 = Family("Llama 4", "llama4_text", {"floor_scale": 4, "attn_scale": 3.0, "num_hidden_layers": 4})
SCALED = {"queries": {"r": 4, "lora_alpha": 32, "target_modules": ["q_proj"]}}
FAMILIES = [
    pytest.param(Family("Llama", "llama"), KINDS, id="Llama"),
    pytest.param(Family("GPT-2", "gpt2"), CONV, id="GPT-2, whose layers are not fused"),
    pytest.param(SCALED_LLAMA4, SCALED, id="Llama 4, whose queries are scaled"),
    pytest.param(Family("Qwen2", "qwen2"), KINDS, id="Qwen2", marks=pytest.mark.long),
    pytest.param(WINDOWED_QWEN3, KINDS, id="Qwen3 with windows", marks=pytest.mark.long),
    pytest.param(Family("Gemma 3", "gemma3_text", UNTIED), KINDS, id="Gemma 3", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("family", "kinds"), FAMILIES)
def test_rows_of_adapters_and_of_their_base_are_answered_together_as_peft_answers_each(family, kinds, tmp_path):
    model = tiny_model(family)
    write_adapters(model, tmp_path, kinds)
    asked = prompts()[:2]
    expected = {"": answers_alone(model, asked)}
    for name in kinds:
        adapted = PeftModel.from_pretrained(deepcopy(model), tmp_path / name)
        expected[name] = answers_alone(adapted, asked)
    served = replace(prepare_model(model, Letters(), family.name), eos_ids=frozenset())
    loaded = add_adapters(served, read_adapters(str(tmp_path)).values())
    rows = {f"{name} {number}": (name, one) for name, of in expected.items() for number, one in enumerate(of)}
    sequences = [DecodingRequest(row, one.prompt_ids, ANSWER, adapter=name) for row, (name, one) in rows.items()]
    for way in WAYS:
        answers = way(loaded, sequences)
        for row, (_, one) in rows.items():
            assert answers[row][: len(one.answer)] == one.answer, f"{row} {way.__name__}"

"""What is told of a model before its weights are read is what loading it finds."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.engine_errors import UnsupportedModel
from inference.local.loading.architecture_faults import architecture_fault
from inference.local.loading.cache_layout import served_layout
from inference.local.loading.model_loading import load_model
from inference.local.loading.model_outline import outline_model
from settings import BUNDLED_MODEL
from tests.models.tiny_families import POSITIONS, Family, scaled, tiny_model
from tests.unit.inference.model_directories import setting, whole_model

CPU = torch.device("cpu")


def configured(at: Path, model) -> str:
    """Writes the configuration of a model, and the bundled tokenizer."""
    model.config.save_pretrained(at)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / file, at / file)
    return str(at)


@pytest.mark.parametrize(
    "family",
    [
        Family("heads of keys are fewer", "qwen3"),
        Family("experts are chosen by the tokens", "mixtral"),
        Family("keys and values differ in size", "deepseek_v3", {"num_key_value_heads": 4}),
        Family("it looks at its input for padding", "gpt2"),
        Family("frequencies follow the length", "llama", scaled("dynamic")),
        Family("kinds of layers alternate", "gemma2"),
        Family("positions are a mask", "bloom"),
        Family("layers keep states", "qwen3_next"),
        Family("layers cache nothing else", "mamba"),
        Family("indexers have a cache of their own", "deepseek_v32", {"num_key_value_heads": 4}),
        Family("layers differ in their heads", "mimo_v2_flash"),
    ],
    ids=lambda family: family.name,
)
def test_layout_and_weights_are_those_of_the_loaded_model(tmp_path: Path, family: Family) -> None:
    model = tiny_model(family)
    outline, (layout, positions) = outline_model(configured(tmp_path, model), CPU, "float32"), served_layout(model, "")
    assert replace(outline.layout, device=CPU) == layout
    assert outline.max_positions == positions
    assert outline.weight_bytes == sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))


DECODER = {"is_decoder": True}
OF_WHISPER = {"decoder_layers": 2, "decoder_attention_heads": 4, "encoder_attention_heads": 4, "encoder_layers": 1}


@pytest.mark.parametrize(
    ("family", "why"),
    [
        (Family("its tokens attend to later ones", "bert"), "is_decoder is false"),
        (Family("positions begin behind the padding's id", "roberta", DECODER), "from the padding token's id"),
        (Family("it takes no positions", "roformer", DECODER), "takes no positions"),
        (Family("its prompts have hidden tokens", "cpmant"), "takes no positions"),
        (Family("its layers keep states", "recurrent_gemma", {"lru_width": 32}), "keep the states of rows themselves"),
        (Family("its cache alone keeps a window", "moshi"), "its cache keeps a window"),
        (Family("distances follow the longest row", "inkling_text"), "distances between tokens"),
        (Family("it is part of an encoder with a decoder", "whisper", OF_WHISPER), "continues no prompt"),
    ],
    ids=lambda one: one.name if isinstance(one, Family) else "",
)
def test_what_is_refused_is_refused_in_the_same_words_without_weights(tmp_path: Path, family: Family, why: str) -> None:
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=why) as told:
        outline_model(configured(tmp_path, model), CPU, "float32")
    with pytest.raises(UnsupportedModel) as found:
        load_model(str(tmp_path), dtype="float32")
    assert found.value.reason == told.value.reason


@pytest.mark.parametrize("model_type", ["bert", "gpt_neox_japanese", "mpt"])
def test_decoders_and_models_that_need_no_positions_are_no_faults(model_type: str) -> None:
    assert architecture_fault(tiny_model(Family("", model_type, DECODER)), POSITIONS) == ""


def test_the_data_type_is_that_of_the_setting_or_of_the_model(tmp_path: Path) -> None:
    model = configured(tmp_path, tiny_model(Family("", "llama")))
    setting("config.json", dtype="float16")(tmp_path)
    assert outline_model(model, CPU, "bfloat16").layout.dtype == torch.bfloat16
    assert outline_model(model, CPU, "auto").layout.dtype == torch.float32  # as cpu_dtype has it for a small model
    assert outline_model(model, torch.device("cuda"), "auto").layout.dtype == torch.float16


def test_without_a_stated_type_a_gpu_gets_that_of_the_weight_files(tmp_path: Path) -> None:
    whole_model(tmp_path)
    setting("config.json", dtype=None)(tmp_path)
    assert outline_model(str(tmp_path), torch.device("cuda"), "auto").layout.dtype == torch.float32


def test_the_ends_are_named_with_their_ids(tmp_path: Path) -> None:
    model = configured(tmp_path, tiny_model(Family("", "llama")))
    setting("config.json", eos_token_id=None)(tmp_path)
    assert outline_model(model, CPU, "auto").end_tokens == ("1 <eos>",)  # of the tokenizer
    setting("generation_config.json", eos_token_id=[3, 0, 5000])(tmp_path)
    assert outline_model(model, CPU, "auto").end_tokens == ("0 <pad>", "3 <user>", "5000 ?")


def test_a_model_without_positions_of_its_own_is_unbounded(tmp_path: Path) -> None:
    assert outline_model(configured(tmp_path, tiny_model(Family("", "llama"))), CPU, "auto").bounded
    assert outline_model(str(tmp_path), CPU, "auto").max_positions == POSITIONS

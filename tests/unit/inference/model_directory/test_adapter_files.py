"""Adapters are read without torch; whatever is more than low-rank products is refused in a line that names it."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from inference.engine_errors import InferenceError
from inference.model_directory.adapter_files import CONFIG, PREFIX, WEIGHTS, read_adapter, read_adapters

CONFIGURED = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}
MODULES = ("layers.0.q_proj", "layers.1.q_proj")
PAIRS = {
    f"{PREFIX}{module}.{side}.weight": torch.zeros(shape)
    for module in MODULES
    for side, shape in (("lora_A", (2, 5)), ("lora_B", (3, 2)))
}


def written(directory: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text(json.dumps(CONFIGURED | config))
    save_file(PAIRS if tensors is None else tensors, directory / WEIGHTS)
    return directory


def test_the_adapters_of_a_directory_are_its_subdirectories_with_a_configuration(tmp_path: Path) -> None:
    for name in ("b", "a"):
        written(tmp_path / name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "README").write_text("")
    found = read_adapters(str(tmp_path))
    assert list(found) == ["a", "b"]
    assert found["a"].shapes == dict.fromkeys(MODULES, ((2, 5), (3, 2)))


@pytest.mark.parametrize(
    ("options", "scalings"),
    [
        ({}, (3.0, 3.0)),
        ({"use_rslora": True, "lora_alpha": 2**0.5}, (1.0, 1.0)),
        ({"alpha_pattern": {r"layers\.1\.q_proj": 8}}, (3.0, 4.0)),
        ({"alpha_pattern": {"q_proj": 8, "1.q_proj": 10}}, (4.0, 4.0)),  # the first pattern that matches
        ({"alpha_pattern": {"proj": 8}}, (3.0, 3.0)),  # a pattern names whole parts of a path
    ],
)
def test_a_product_is_scaled_as_peft_scales_it(
    tmp_path: Path, options: dict[str, Any], scalings: tuple[float, float]
) -> None:
    adapter = read_adapter(written(tmp_path / "a", **options))
    assert tuple(map(adapter.scaling, MODULES)) == pytest.approx(scalings)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4'"),
        ({"init_lora_weights": ["pissa"]}, "init_lora_weights"),
        ({"use_dora": True}, "use_dora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
        ({"target_parameters": ["experts.gate"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"something_new": 1}, "something_new"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_name(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    with pytest.raises(InferenceError) as refused:
        read_adapter(written(tmp_path / "a", **config))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_that_ask_for_nothing_are_accepted(tmp_path: Path) -> None:
    unused: dict[str, Any] = {
        "use_dora": False,
        "modules_to_save": None,
        "layer_replication": None,
        "something_new": {},
    }
    read_adapter(written(tmp_path / "a", lora_dropout=0.1, inference_mode=True, **unused))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({PREFIX + "layers.0.q_proj.lora_magnitude_vector": torch.zeros(3)}, "lora_magnitude_vector"),
        ({PREFIX + "embed.lora_embedding_A": torch.zeros(2, 9)}, "lora_embedding_A"),
        ({"layers.0.q_proj.lora_A.weight": torch.zeros(2, 5)}, "layers.0.q_proj.lora_A.weight"),
        ({PREFIX + "layers.2.q_proj.lora_A.weight": torch.zeros(2, 5)}, "lacks"),
        ({PREFIX + "layers.0.q_proj.lora_B.weight": torch.zeros(3, 4)}, "[2, 5] and [3, 4]"),
        ({PREFIX + "layers.0.q_proj.lora_A.weight": torch.zeros(2, 5, 1)}, "shapes"),
    ],
)
def test_weights_that_are_no_pairs_of_matrices_are_refused_by_their_name(
    tmp_path: Path, changes: dict[str, torch.Tensor], named: str
) -> None:
    with pytest.raises(InferenceError) as refused:
        read_adapter(written(tmp_path / "a", PAIRS | changes))
    assert named in str(refused.value)


def test_pickled_weights_are_not_unpickled(tmp_path: Path) -> None:
    directory = written(tmp_path / "a")
    (directory / WEIGHTS).rename(directory / "adapter_model.bin")
    with pytest.raises(InferenceError, match=r"adapter_model\.bin is pickled and may run code"):
        read_adapter(directory)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-4]), "cut off"),
        (lambda file: file.write_bytes(struct.pack("<Q", 9) + b"not json!"), "no safetensors file"),
        (lambda file: file.write_bytes(b""), "cut off"),
        (lambda file: save_file({}, file), "is empty"),
        (lambda file: file.unlink(), "has no adapter_model.safetensors"),
    ],
)
def test_damaged_weights_are_refused(tmp_path: Path, damage, why: str) -> None:
    directory = written(tmp_path / "a")
    damage(directory / WEIGHTS)
    with pytest.raises(InferenceError, match=why):
        read_adapter(directory)


def test_a_directory_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match="no such directory"):
        read_adapters(str(tmp_path / "nowhere"))
    with pytest.raises(InferenceError, match=r"no directory in it has an adapter_config\.json"):
        read_adapters(str(tmp_path))
    with pytest.raises(InferenceError, match="an adapter itself"):
        read_adapters(str(written(tmp_path / "a")))

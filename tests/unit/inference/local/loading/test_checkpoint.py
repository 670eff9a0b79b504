"""A model directory is loaded as transformers loads it, or refused in one line that names what is wrong."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from inference.engine_errors import InferenceError, QuantizationUnavailable, UnsupportedModel
from inference.local.loading.checkpoint import quantization, read_checkpoint
from inference.local.loading.model_loading import load_model, prepare_model
from inference.local.loading.model_outline import outline_model
from inference.model_directory.model_checks import check_model
from inference.model_directory.model_weights import weight_files
from inference.prompts.prompt_format import load_prompt_format
from tests.unit.inference.model_directories import (
    Change,
    all_of,
    removed,
    setting,
    sharded,
    weights,
    whole_model,
    without,
    written,
)
from tests.unit.inference.tiny_models import SHAPE, Letters

EMBEDDING, LAST = "model.embed_tokens.weight", "model.layers.1."
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2923024\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_model(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def pickled(model: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()


def a_shard_is_missing(model: Path) -> None:
    (model / next(iter(sharded(model).values()))).unlink()


def a_tensor_is_in_both_shards(model: Path) -> None:
    first, second = sorted(set(sharded(model).values()))
    doubled = load_file(model / second) | dict([next(iter(load_file(model / first).items()))])
    save_file(doubled, model / second, metadata={"format": "pt"})


def cut_off(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def renamed(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"base_model.{name}": value for name, value in stored.items()}


def packed(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = f"{LAST}mlp.down_proj."
    return {f"{name}qweight" if one == f"{name}weight" else one: value for one, value in stored.items()}


def halved(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return stored | {EMBEDDING: stored[EMBEDDING][:640].clone()}


def quantised(**stated: Any) -> Change:
    return setting("config.json", quantization_config=stated)


REFUSED: dict[str, tuple[Change, str]] = {
    "no output layer": (without("lm_head"), "its files lack lm_head.weight"),
    "a missing layer": (without(LAST), r"its files lack model\.layers\.1\..* and 6 more"),
    "names behind a prefix": (weights(renamed), "its files lack lm_head.weight, .* more"),
    "packed names of an unknown kind": (weights(packed), "its files lack .*down_proj.weight"),
    "fewer layers than stored": (setting("config.json", num_hidden_layers=1), "a model without .*layers.1.* which it"),
    "another shape": (weights(halved), r"its model.embed_tokens.weight has the shape \[640, 32\] .* \[1280, 32\]"),
    "an embedding of another size": (setting("config.json", vocab_size=1290), r"has the shape \[1280, 32\]"),
    "weights cut off": (cut_off, "cut off"),
    "weights that are text": (written("model.safetensors", "hello"), "cut off"),
    "empty weights": (written("model.safetensors", ""), "it has no weights"),
    "no weights": (removed("model.safetensors"), r"it has no weights \(\*\.safetensors\)$"),
    "weights in Git LFS": (written("model.safetensors", POINTER), "git lfs pull"),
    "integers without their scales": (
        weights(lambda stored: {name: value.to(torch.int8) for name, value in stored.items()}),
        r"lm_head.weight is stored as I8, and its config.json names no quantisation",
    ),
    "pickled weights": (pickled, "only pickled ones, which may run code"),
    "shards without their index": (
        all_of(sharded, removed("model.safetensors.index.json")),
        r"it has model-00001-of-00002.safetensors, and neither .* fetch that file, too",
    ),
    "a GGUF file in its place": (
        all_of(removed("model.safetensors"), written("small.Q4_K.gguf", "GGUF")),
        r"no weights \(\*\.safetensors\), but small.Q4_K.gguf: name this file",
    ),
    "a missing shard": (a_shard_is_missing, "safetensors is missing, which model.safetensors.index.json names"),
    "missing weights of a name": (
        setting("config.json", transformers_weights="other.safetensors"),
        "other.safetensors is missing, which config.json names as transformers_weights",
    ),
    "pickled weights of a name": (
        all_of(pickled, setting("config.json", transformers_weights="pytorch_model.bin")),
        "no safetensors file|cut off",
    ),
    "a tensor twice": (a_tensor_is_in_both_shards, "both have "),
    "a damaged index": (all_of(sharded, written("model.safetensors.index.json", "{")), "index.json is no JSON"),
    "no configuration": (removed("config.json"), "it has no config.json"),
    "a damaged configuration": (written("config.json", "{"), "its config.json is no JSON"),
    "a configuration that is a list": (written("config.json", "[]"), "its config.json is no JSON object"),
    "a configuration in another encoding": (
        lambda model: (model / "config.json").write_bytes('{"é": 1}'.encode("latin-1")),
        "its config.json is no UTF-8 text",
    ),
    "a configuration in Git LFS": (written("config.json", POINTER), "its config.json is a pointer of Git LFS"),
    "no type": (setting("config.json", model_type=None), "its config.json names no model_type"),
    "an unknown type": (setting("config.json", model_type="llama9"), "llama9"),
    "a type that answers nothing": (setting("config.json", model_type="bert"), "bert"),
    "an encoder and a decoder": (setting("config.json", model_type="t5"), "no causal language model of the type t5"),
    "an encoder whose decoder could be loaded": (
        setting("config.json", model_type="bart"),
        r"it is an encoder with a decoder \(bart\), and continues no prompt",
    ),
    "a decoder that was saved alone": (
        setting("config.json", model_type="bart", is_encoder_decoder=False),
        r"it is an encoder with a decoder \(bart\), and continues no prompt",
    ),
    "code of its own": (
        setting("config.json", model_type="chatglm", auto_map={"AutoConfig": "code.Config"}),
        "it needs Python code of its own",
    ),
    "an unknown rope": (setting("config.json", rope_parameters={"rope_type": "spiral", "rope_theta": 1.0}), "spiral"),
    "no attention heads": (setting("config.json", num_attention_heads=0), "cannot be served: "),
    "an unknown number format": (setting("config.json", dtype="float99"), "float99"),
    "a damaged generation configuration": (written("generation_config.json", "{"), "generation_config.json is no JSON"),
    "an end that is no token": (
        setting("generation_config.json", eos_token_id="x"),
        "its generation_config.json names 'x' as eos_token_id, where token ids belong",
    ),
    "ends within ends": (setting("config.json", eos_token_id=[[1]]), "its config.json names .* as eos_token_id"),
    "tokens to suppress that are none": (setting("generation_config.json", suppress_tokens=["a"]), "suppress_tokens"),
    "an index of lists": (
        all_of(sharded, written("model.safetensors.index.json", '{"weight_map": {"a": ["b"]}}')),
        "it has no weights",
    ),
    "a size that is a text": (setting("config.json", vocab_size="many"), "'vocab_size': "),
    "no tokenizer": (removed("tokenizer.json"), "it has no tokenizer.json"),
    "a damaged tokenizer": (written("tokenizer.json", '{"model": {}}'), "tokenizer.json or .* is damaged"),
    "a tokenizer in Git LFS": (written("tokenizer.json", POINTER), "its tokenizer.json is a pointer of Git LFS"),
    "damaged settings of the tokenizer": (
        written("tokenizer_config.json", "{"),
        "its tokenizer_config.json is no JSON",
    ),
    "sentence-transformers": (written("modules.json", "[]"), "gives vectors or scores .* serve it with MAGNUS_EMBED"),
    "a cross-encoder": (setting("config.json", architectures=["BertForSequenceClassification"]), "MAGNUS_EMBED"),
    "an adapter": (written("adapter_config.json", '{"peft_type": "LORA"}'), "it is an adapter"),
    "bitsandbytes": (quantised(quant_method="bitsandbytes", load_in_4bit=True), "pip install bitsandbytes"),
    "bitsandbytes, not named": (quantised(load_in_8bit=True), "pip install bitsandbytes"),
    "GPTQ": (quantised(quant_method="gptq", bits=4), "quantised by gptq: pip install gptqmodel"),
    "AWQ": (quantised(quant_method="awq", bits=4), "quantised by awq: pip install gptqmodel"),
    "compressed tensors": (quantised(quant_method="compressed-tensors"), "pip install compressed-tensors"),
    "torchao": (quantised(quant_method="torchao", quant_type="int8"), "pip install torchao"),
    "a quantisation of a rare kind": (quantised(quant_method="aqlm"), "(?i)pip install aqlm"),
    "an unknown quantisation": (quantised(quant_method="zip"), "zip"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_loaded_right_is_refused_in_one_line(what: str, model: Path, capfd: pytest.CaptureFixture[str]):
    change, said = REFUSED[what]
    change(model)
    with pytest.raises(InferenceError, match=said) as caught:
        load_model(str(model))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_loaded_right_is_told_in_the_same_words_before_weights_are_read(what: str, model: Path):
    change, said = REFUSED[what]
    change(model)

    def look_before_loading() -> None:
        check_model(str(model))
        load_prompt_format(str(model))
        outline_model(str(model), torch.device("cpu"), "auto")

    with pytest.raises(InferenceError, match=said):
        look_before_loading()


@pytest.mark.parametrize("named", ["a.safetensors", "model.safetensors.index.json"])
def test_weights_that_the_configuration_names_are_those_that_are_looked_at_and_loaded(model: Path, named: str):
    stored = model / "model.safetensors"
    right = load_file(stored)
    if named == "a.safetensors":
        stored.rename(model / named)
    else:
        sharded(model)
    save_file({name: torch.zeros_like(value) for name, value in right.items()}, stored, metadata={"format": "pt"})
    setting("config.json", transformers_weights=named)(model)
    assert stored not in weight_files(model)
    check_model(str(model))
    loaded = read_checkpoint(str(model), torch.device("cpu"), "float32", None)
    assert torch.equal(loaded.get_input_embeddings().weight, right[EMBEDDING])


def test_a_model_whose_own_forward_pass_fails_is_told_so():
    broken = LlamaForCausalLM(LlamaConfig(**SHAPE))
    broken.lm_head = torch.nn.Linear(5, 5)
    with pytest.raises(UnsupportedModel, match="its own forward pass fails: RuntimeError"):
        prepare_model(broken, Letters(), "broken")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/no/such/model", "there is no such directory"),
        ("./models/nothing", "there is no such directory"),
        ("models/of/nobody", "there is no such directory"),
        (__file__, "it is a file"),
    ],
)
def test_a_place_without_a_model_is_named(name: str, said: str):
    with pytest.raises(InferenceError, match=said):
        load_model(name)


def test_a_gguf_file_is_refused_with_the_way_to_convert_it(tmp_path: Path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(InferenceError, match="it is a GGUF file: `magnus model convert FILE DIRECTORY`"):
        load_model(str(tmp_path / "model.gguf"))


def test_an_empty_directory_is_refused(tmp_path: Path):
    with pytest.raises(UnsupportedModel, match="it has no weights"):
        load_model(str(tmp_path))


SERVED: dict[str, Change] = {
    "a whole directory": lambda model: None,
    "two shards": sharded,
    "further files that nobody reads": written("consolidated.safetensors", "x"),
    "buffers of an older checkpoint": weights(
        lambda stored: stored | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    ),
    "an adapter's code that is not needed": setting("config.json", auto_map={"AutoConfig": "code.Config"}),
    "kernels of the hub": setting("config.json", attn_implementation="kernels-community/flash-attn"),
    "no generation configuration": removed("generation_config.json"),
    "a number format as text": setting("config.json", dtype="float32"),
    "no token for padding": setting("generation_config.json", pad_token_id=-1),
    "padding beyond the embedding": setting("generation_config.json", pad_token_id=99999),
    "no positions": setting("config.json", max_position_embeddings=-1),
}


@pytest.mark.parametrize("what", SERVED)
def test_a_directory_that_is_whole_is_loaded_with_its_own_weights(what: str, whole: Path, model: Path):
    SERVED[what](model)
    with torch.inference_mode():
        prompt = torch.tensor([[5, 6, 7]])
        expected = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)(prompt).logits
        found = load_model(str(model)).model(prompt).logits
    torch.testing.assert_close(found, expected)


def test_tied_weights_may_be_stored_once(tmp_path: Path):
    model = whole_model(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(model / "model.safetensors")
    loaded = load_model(str(model))
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("in_generation", "in_config", "ends"), [(None, None, {1}), (7, None, {7}), ([7, 8], 3, {7, 8}), (None, 3, {3})]
)
def test_the_tokenizer_names_the_end_where_the_configurations_do_not(
    model: Path, in_generation: int | list[int] | None, in_config: int | None, ends: set[int]
):
    setting("generation_config.json", eos_token_id=in_generation)(model)
    setting("config.json", eos_token_id=in_config)(model)
    assert load_model(str(model)).eos_ids == ends


def test_quantization_that_cannot_work_is_refused():
    with pytest.raises(QuantizationUnavailable, match="needs a CUDA device, this worker has cpu"):
        quantization("4bit", torch.device("cpu"))


def test_quantised_weights_need_what_places_them(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    quantised(quant_method="fp8")(model)
    with pytest.raises(UnsupportedModel, match="quantised by fp8: pip install accelerate"):
        load_model(str(model))
    quantised(quant_method="gptq", bits=4)(model)
    with pytest.raises(UnsupportedModel, match="quantised by gptq: pip install gptqmodel accelerate"):
        load_model(str(model))


def test_weights_are_not_quantised_twice(model: Path):
    quantised(quant_method="fp8")(model)
    with pytest.raises(QuantizationUnavailable, match="quantised already, by fp8"):
        load_model(str(model), quantize="8bit")

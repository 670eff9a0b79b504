"""A tokenizer's files give the token ids that transformers makes of them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES
from transformers.models.cohere.tokenization_cohere import CohereTokenizer

from inference.engine_errors import UnreadableModel
from inference.model_directory.model_tokenizer import TAKEN_AS_STORED, find_special_tokens, load_tokenizer
from settings import BUNDLED_MODEL

TEXTS = ["cat dog", " cat", "<s>cat dog<s>dog", "dog<eos> cat", "cat" * 40, ""]


def sentencepiece() -> Tokenizer:
    """A tokenizer as Llama 2 stores it: a normalizer writes a blank before every piece of text."""
    letters = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"catdogs<>eo", "▁c", "at"]
    vocabulary = {letter: number for number, letter in enumerate(dict.fromkeys(letters))}
    made = Tokenizer(BPE(vocabulary, [("▁", "c"), ("a", "t")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in ("<unk>", "<s>", "</s>")])
    return made


def bundled() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))


def cut_and_padded() -> Tokenizer:
    made = bundled()
    made.enable_truncation(4)
    made.enable_padding(length=12, pad_id=0, pad_token="<pad>")
    return made


def byte_level(made: Any, prefix: bool = True) -> Tokenizer:
    """A tokenizer as this class of transformers stores it, which adds a blank before a text."""
    known = json.loads((BUNDLED_MODEL / "tokenizer.json").read_text())["model"]
    merges = [tuple(one.split(" ") if isinstance(one, str) else one) for one in known["merges"]]
    stored: Tokenizer = made(vocab=known["vocab"], merges=merges, add_prefix_space=prefix, **BYTES).backend_tokenizer
    return stored


def directory_of(at: Path, tokenizer: Tokenizer, model_type: str = "llama", **files: dict[str, Any]) -> str:
    tokenizer.save(str(at / "tokenizer.json"))
    (at / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 300}))
    for name, content in files.items():
        (at / f"{name}.json").write_text(json.dumps(content))
    return str(at)


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTES = {"eos_token": "<eos>", "bos_token": "<eos>", "unk_token": "<eos>"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}


@pytest.mark.parametrize(
    ("make", "model_type", "files"),
    [
        (cut_and_padded, "llama", {"tokenizer_config": FAST}),
        (sentencepiece, "llama", {"tokenizer_config": LLAMA}),
        (sentencepiece, "llama", {"tokenizer_config": LLAMA | {"legacy": False}}),
        (sentencepiece, "llama", {"tokenizer_config": LLAMA | {"legacy": True}}),
        (sentencepiece, "llama", {"tokenizer_config": LLAMA | {"add_prefix_space": False}}),
        (sentencepiece, "llama", {"tokenizer_config": LLAMA | {"add_bos_token": True, "add_eos_token": True}}),
        (sentencepiece, "qwen3", {"tokenizer_config": LLAMA}),
        (sentencepiece, "mistral", {"tokenizer_config": LLAMA}),
        (sentencepiece, "llama", {"tokenizer_config": FAST | {"eos_token": "</s>"}}),
        (bundled, "llama", {"tokenizer_config": LLAMA | {"bos_token": "<user>", "eos_token": "<eos>"}}),
        (bundled, "llama", {"tokenizer_config": FAST | {"add_eos_token": True, "model_max_length": 2}}),
        (bundled, "llama", {"tokenizer_config": {}, "special_tokens_map": {"bos_token": {"content": "<s>"}}}),
        (bundled, "llama", {"tokenizer_config": FAST | {"additional_special_tokens": ["dog"]}}),
        (bundled, "llama", {"tokenizer_config": FAST | {"split_special_tokens": True}}),
        (bundled, "llama", {"tokenizer_config": FAST | {"split_special_tokens": False}}),
        (bundled, "llama", {"tokenizer_config": FAST | {"add_prefix_space": True}}),
        (sentencepiece, "mistral", {"tokenizer_config": LLAMA | {"add_prefix_space": False}}),
        *(
            (partial(byte_level, made), kind, {"tokenizer_config": BYTES | {"tokenizer_class": made.__name__} | prefix})
            for made, kind in (
                (GPT2Tokenizer, "gpt2"),
                (GPT2Tokenizer, "llama"),
                (GPT2Tokenizer, "mistral"),
                (Qwen2Tokenizer, "qwen2"),
                (Qwen2Tokenizer, "qwen3"),
                (GPTNeoXTokenizer, "gpt_neox"),
                (CohereTokenizer, "cohere"),
            )
            for prefix in ({}, {"add_prefix_space": True}, {"add_prefix_space": False})
        ),
        (
            bundled,
            "llama",
            {"tokenizer_config": FAST | {"added_tokens_decoder": {"1280": {"content": "cat", "special": False}}}},
        ),
    ],
)
def test_the_ids_are_those_of_transformers(
    tmp_path: Path, make: Callable[[], Tokenizer], model_type: str, files: dict[str, dict[str, Any]]
) -> None:
    model = directory_of(tmp_path, make(), model_type, **files)
    ours, theirs = load_tokenizer(model), AutoTokenizer.from_pretrained(model)
    for text in TEXTS:
        assert ours.tokenizer.encode(text).ids == theirs(text)["input_ids"], text
        ids = ours.tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.special_tokens.get("bos_token") == theirs.bos_token
    assert ours.eos_id == theirs.eos_token_id


def test_the_types_whose_tokenizer_is_taken_as_stored_are_those_of_transformers() -> None:
    plain = {kind for kind, name in TOKENIZER_MAPPING_NAMES.items() if name == "TokenizersBackend"}
    assert plain & MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() == TAKEN_AS_STORED


def test_special_tokens_are_strings_whether_they_are_stored_with_options_or_without() -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None, "other": "x"}
    assert find_special_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_templates_may_name_the_models_own_special_tokens(tmp_path: Path) -> None:
    named = {"think_token": "<think>", "extra_special_tokens": {"image_token": "<image>"}, "add_eos_token": False}
    model = directory_of(tmp_path, bundled(), "llama", tokenizer_config=FAST | named)
    ours, theirs = load_tokenizer(model), AutoTokenizer.from_pretrained(model)
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.special_tokens["image_token"] == "<image>"
    text = "a <think>b<image>c"
    assert ours.tokenizer.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("stored", ["", "[]", "{", '{"model": {}}', '{"version": "1.0", "model": {"type": "Odd"}}'])
def test_a_damaged_tokenizer_is_refused_in_one_line(tmp_path: Path, stored: str) -> None:
    (tmp_path / "tokenizer.json").write_text(stored)
    with pytest.raises(UnreadableModel, match=r"tokenizer\.json or tokenizer_config\.json is damaged") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)

"""Reads a model's tokenizer as transformers does, without torch: tokenizer.json, and what other files change in it."""

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from inference.engine_errors import UnreadableModel
from inference.model_directory.model_files import read_json, read_text

# The names that transformers gives special tokens in its files and in templates.
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# transformers builds a Llama tokenizer anew from the vocabulary, except for these types of models, whose tokenizer.json
# it takes as it is.
TAKEN_AS_STORED = frozenset({
    "beam", "bigbird_pegasus", "ernie4_5", "ernie4_5_moe", "flex_olmo", "fuyu", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "got_ocr2", "gpt_bigcode", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared",
    "hyperclovax", "internlm3", "iquestcoder", "jamba", "kimi_linear", "mimo_v2_flash", "minicpm3", "minimax_m2",
    "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder", "nemotron", "olmo2", "olmo3",
    "olmo_hybrid", "persimmon", "phi3", "phimoe", "stablelm", "xlm-roberta-xl",
})  # fmt: skip
# Classes that transformers builds anew with the blank before a text that tokenizer_config.json asks for.
BYTE_LEVEL = frozenset({"GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer", "CohereTokenizer"})


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """A tokenizer with its special tokens by the names that templates use, such as `bos_token`."""

    tokenizer: Tokenizer
    special_tokens: dict[str, str]
    splits_special: bool = False  # special tokens in a prompt, even in a rendered one, are read as plain text

    @property
    def eos_id(self) -> int | None:
        """The token that ends a sequence, if the tokenizer names one."""
        name = self.special_tokens.get("eos_token")
        found: int | None = None if name is None else self.tokenizer.token_to_id(name)
        return found


def load_tokenizer(model: str) -> ModelTokenizer:
    """Returns the tokenizer of a model directory or hub id; raises UnreadableModel.

    Truncation and padding that were saved with it are off, because every token of a prompt counts.
    """
    stored = read_text(model, "tokenizer.json")
    if stored is None:
        raise UnreadableModel(model, "it has no tokenizer.json")
    settings, config = read_json(model, "tokenizer_config.json"), read_json(model, "config.json")
    if "added_tokens_decoder" not in settings:  # an older file overrides it, as in transformers
        settings |= read_json(model, "special_tokens_map.json")
    try:
        return _make_tokenizer(stored, settings, config)
    except Exception as error:  # tokenizers raises no narrower error
        reason = " ".join(f"{type(error).__name__}: {error}".removeprefix("Exception: ").split())
        raise UnreadableModel(model, f"its tokenizer.json or tokenizer_config.json is damaged: {reason}") from error


def _make_tokenizer(stored: str, settings: dict[str, Any], config: dict[str, Any]) -> ModelTokenizer:
    if _class_of(settings, config) in BYTE_LEVEL and config.get("model_type") not in TAKEN_AS_STORED:
        stored = _with_prefix(stored, settings.get("add_prefix_space") is True)
    tokenizer, special_tokens = Tokenizer.from_str(stored), find_special_tokens(settings)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, settings, special_tokens)
    if _is_rebuilt(tokenizer, settings, config):
        _rebuild_as_llama(tokenizer, settings)
    tokenizer.encode_special_tokens = splits = settings.get("split_special_tokens") is True
    return ModelTokenizer(tokenizer, special_tokens, splits)


def _class_of(settings: dict[str, Any], config: dict[str, Any]) -> str:
    return str(settings.get("tokenizer_class") or config.get("tokenizer_class")).removesuffix("Fast")


def _with_prefix(stored: str, prefix: bool) -> str:
    """Returns the tokenizer.json with a byte-level pre-tokenizer that adds a blank before a text, or none."""
    parsed = json.loads(stored)
    first = parsed.get("pre_tokenizer") or {}
    for part in (first, *first.get("pretokenizers", ())):
        if part["type"] == "ByteLevel":
            part["add_prefix_space"] = prefix
    return json.dumps(parsed)


def find_special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens by the names that templates use; models add their own names, such as image_token."""
    further = settings.get("extra_special_tokens")
    named = {name: settings.get(name) for name in SPECIAL_TOKENS}
    named |= {name: entry for name, entry in settings.items() if name.endswith("_token")}
    found = {name: _texts(entry) for name, entry in (named | (further if isinstance(further, dict) else {})).items()}
    return {name: texts[0] for name, texts in found.items() if texts}


def _texts(entry: Any) -> list[str]:
    """Returns the tokens in an entry of the settings: a text, an object with a text, or several of either."""
    if isinstance(entry, dict):
        return [entry["content"]] if "content" in entry else _texts(list(entry.values()))
    if isinstance(entry, list):
        return [text for part in entry for text in _texts(part)]
    return [entry] if entry and isinstance(entry, str) else []


def _add_tokens(tokenizer: Tokenizer, settings: dict[str, Any], special_tokens: dict[str, str]) -> None:
    """Adds the tokens that tokenizer.json lacks, and makes the named ones special."""
    stored = settings.get("added_tokens_decoder")
    listed = [stored[key] for key in sorted(stored, key=int)] if isinstance(stored, dict) else []
    tokenizer.add_tokens([AddedToken(**entry) for entry in listed if tokenizer.token_to_id(entry["content"]) is None])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    others = (_texts(settings.get(name)) for name in ("additional_special_tokens", "extra_special_tokens"))
    named = dict.fromkeys([*special_tokens.values(), *chain.from_iterable(others)])
    tokenizer.add_special_tokens(
        [AddedToken(one, special=True, normalized=False) for one in named if one not in special]
    )


def _is_rebuilt(tokenizer: Tokenizer, settings: dict[str, Any], config: dict[str, Any]) -> bool:
    """Returns whether transformers builds this tokenizer anew as a Llama tokenizer."""
    byte_level = "ByteLevel" in repr(tokenizer.pre_tokenizer)
    stored = byte_level or not isinstance(tokenizer.model, BPE) or config.get("model_type") in TAKEN_AS_STORED
    return _class_of(settings, config) == "LlamaTokenizer" and not stored


def _rebuild_as_llama(tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Sets where a blank is added: before the whole text alone, or with `legacy` after each special token, too."""
    prefix = settings.get("add_prefix_space") is not False
    scheme = "never" if not prefix else "always" if settings.get("legacy", False) else "first"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if prefix else parts)

"""Reads the files of an embedding model or a cross-encoder: its bounds, its tokenizer. Imports no torch."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json
from tokenizers import Tokenizer

from inference.engine_errors import UnreadableModel
from inference.isolated_calls import IsolatedCalls
from inference.model_directory.model_files import read_json, read_text
from inference.model_directory.model_tokenizer import load_tokenizer
from inference.model_prompt import CHARACTER_S, ENCODED_WITHIN_S, LONG_CHARACTERS

SIZES = ("hidden_size", "d_model", "dim")  # names of the width in BERT's config.json, in T5's and in DistilBERT's


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model in a directory, or of a hub id, under the name that clients send.

    A cross-encoder `scores_pairs`, the others give vectors of `dimensions` values. It reads at most `max_tokens` of a
    text or a pair. `prefix` is put before each text before its vector is computed.
    """

    name: str
    directory: str
    scores_pairs: bool
    max_tokens: int
    dimensions: int | None
    prefix: str
    tokenizer: Tokenizer = field(repr=False)
    long_texts: IsolatedCalls = field(repr=False)

    def item_tokens(self, texts: Sequence[str], queries: int = 0, caller: str = "") -> list[int]:
        """Returns the number of tokens that the model reads, special tokens included, for each text or each pair.

        The first `queries` texts are queries, and the others documents; a single query belongs to all of them. Texts of
        many characters are counted in a process of its own, for one call of each caller at a time. Raises TooExpensive.
        """
        special = self.tokenizer.num_special_tokens_to_add(self.scores_pairs)
        if not self.scores_pairs:
            return [tokens + special for tokens in self._count([self.prefix + text for text in texts], caller)]
        counts = self._count(texts, caller)
        asked, documents = counts[:queries], counts[queries:]
        if queries == 1:
            asked *= len(documents)
        return [query + document + special for query, document in zip(asked, documents, strict=True)]

    def _count(self, texts: Sequence[str], caller: str) -> list[int]:
        characters = sum(map(len, texts))
        if characters <= LONG_CHARACTERS:
            return count_tokens(self.tokenizer, texts)
        cpu_s = ENCODED_WITHIN_S + CHARACTER_S * characters
        counts: list[int] = from_json(self.long_texts.call(to_json(texts).decode(), cpu_s, caller))
        return counts


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Returns the tokens of each text without special ones."""
    return [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]


def token_counter(directory: str) -> Callable[[str], str]:
    """Returns the function that counts the tokens of long texts in processes of their own, from JSON to JSON."""
    tokenizer = load_tokenizer(directory).tokenizer
    return lambda texts: to_json(count_tokens(tokenizer, from_json(texts))).decode()


def read_text_model(name: str, directory: str) -> TextModel:
    """Reads the files of a model; raises UnreadableModel for one that gives neither vectors nor one score a pair."""
    config = read_json(directory, "config.json")
    try:
        scores_pairs = any(str(one).endswith("ForSequenceClassification") for one in config.get("architectures") or ())
        if scores_pairs and len(config.get("id2label", ("no", "yes"))) != 1:
            raise UnreadableModel(directory, "it gives each pair several scores, and reranking needs one")
        return TextModel(
            name,
            directory,
            scores_pairs,
            _max_tokens(directory, config),
            None if scores_pairs else _dimensions(directory, config),
            "" if scores_pairs else _prefix(directory),
            load_tokenizer(directory).tokenizer,
            IsolatedCalls("inference.embedding.text_model:token_counter", directory),
        )
    except (TypeError, ValueError, AttributeError, LookupError, StopIteration) as error:
        raise UnreadableModel(directory, f"it is no sentence-transformers model: {error}") from error


def _max_tokens(directory: str, config: dict[str, Any]) -> int:
    """Returns the length at which sentence-transformers cuts off what the model reads."""
    chosen = read_json(directory, "sentence_bert_config.json").get("max_seq_length")
    if chosen is not None:
        return int(chosen)
    positions = config.get("max_position_embeddings")
    stated = read_json(directory, "tokenizer_config.json").get("model_max_length"), positions
    return int(min(tokens for tokens in stated if tokens is not None and tokens > 0))


def _dimensions(directory: str, config: dict[str, Any]) -> int:
    """Returns the values of a vector after the last module that changes them."""
    dimensions = next(int(config[name]) for name in SIZES if config.get(name))
    for module in json.loads(read_text(directory, "modules.json") or "[]"):
        kind, own = module["type"].rpartition(".")[2], read_json(directory, f"{module['path']}/config.json")
        if kind == "Pooling":
            modes = own.get("pooling_mode", [name for name in own if name.startswith("pooling_mode_") and own[name]])
            dimensions *= len(modes) if isinstance(modes, list) else 1
        elif kind == "Dense":
            dimensions = int(own["out_features"])
    return dimensions


def _prefix(directory: str) -> str:
    """Returns the prompt that sentence-transformers puts before each text unless it is told otherwise."""
    told = read_json(directory, "config_sentence_transformers.json")
    return str((told.get("prompts") or {}).get(told.get("default_prompt_name"), ""))

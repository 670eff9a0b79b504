"""Reads the files of an embedding model or a cross-encoder: its bounds, its tokenizer. Imports no torch."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json
from tokenizers import Tokenizer

from inference.engine_errors import UnreadableModel
from inference.isolated_calls import IsolatedCalls
from inference.model_directory.model_files import read_header, read_json, read_text
from inference.model_directory.model_tokenizer import load_tokenizer
from inference.prompts.model_prompt import CHARACTER_S, ENCODED_WITHIN_S, LONG_CHARACTERS

SIZES = ("hidden_size", "d_model", "dim")  # names of the width in BERT's config.json, in T5's and in DistilBERT's
STATIC = "StaticEmbedding"  # this module has one fixed vector for each token, and takes the mean of a text's vectors
ROUTER = "Router"  # this module has others for queries and for documents
ROUTES = (
    "it has a route for queries and another for documents (Router): serve each under a name of its own, saved by "
    'SentenceTransformer(modules=[*model[0].sub_modules["query"], *list(model)[1:]]).save(DIRECTORY)'
)
TABLES = ("embedding.weight", "embeddings")  # names of these vectors in files of sentence-transformers and of model2vec
STATIC_TOKENS = 2**15  # such a module has no bound of its own; any value above the longest text of a request works


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model in a directory, or of a hub id, under the name that clients send.

    If it `scores_pairs`, it is a cross-encoder; otherwise it gives vectors of `dimensions` values. It reads at most
    `max_tokens` tokens of a text or a pair. `prefix` is put before each text whose vector is computed.
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
        many characters are counted in a separate process, one call at a time for each `caller`. Raises TooExpensive.
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
    """Returns the number of tokens of each text, without special tokens."""
    return [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]


def token_counter(directory: str) -> Callable[[str], str]:
    """Returns the function, from JSON to JSON, with which separate processes count the tokens of long texts."""
    tokenizer = load_tokenizer(directory).tokenizer
    return lambda texts: to_json(count_tokens(tokenizer, from_json(texts))).decode()


def read_text_model(name: str, directory: str) -> TextModel:
    """Reads the files of a model; raises UnreadableModel unless it gives vectors, or one score for each pair."""
    try:
        modules = json.loads(read_text(directory, "modules.json") or "[]")
        if modules and _kind(modules[0]) == ROUTER:
            raise UnreadableModel(directory, ROUTES)
        if modules and _kind(modules[0]) == STATIC:
            return _static_model(name, directory, modules)
        config = read_json(directory, "config.json")
        scores_pairs = any(str(one).endswith("ForSequenceClassification") for one in config.get("architectures") or ())
        if scores_pairs and len(config.get("id2label", ("no", "yes"))) != 1:
            raise UnreadableModel(directory, "it gives each pair several scores, and reranking needs one")
        widths = (int(config[name]) for name in SIZES if config.get(name))
        return TextModel(
            name,
            directory,
            scores_pairs,
            _max_tokens(directory, config),
            None if scores_pairs else _dimensions(directory, modules, next(widths)),
            "" if scores_pairs else _prefix(directory),
            load_tokenizer(directory).tokenizer,
            IsolatedCalls("inference.embedding.text_model:token_counter", directory),
        )
    except (TypeError, ValueError, AttributeError, LookupError, StopIteration) as error:
        raise UnreadableModel(directory, f"it is no sentence-transformers model: {error}") from error


def _static_model(name: str, directory: str, modules: list[dict[str, Any]]) -> TextModel:
    """Reads a model whose first module has a vector for each token; its tokenizer may cut off texts."""
    place = Path(directory) / modules[0]["path"]
    header = read_header(place / "model.safetensors")
    width = next(int(header[table]["shape"][1]) for table in TABLES if table in header)
    cut = read_json(str(place), "tokenizer.json").get("truncation") or {}
    return TextModel(
        name,
        directory,
        False,
        int(cut.get("max_length", STATIC_TOKENS)),
        _dimensions(directory, modules, width),
        _prefix(directory),
        load_tokenizer(str(place)).tokenizer,
        IsolatedCalls("inference.embedding.text_model:token_counter", str(place)),
    )


def _kind(module: dict[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]


def _max_tokens(directory: str, config: dict[str, Any]) -> int:
    """Returns the number of tokens after which sentence-transformers cuts off a text."""
    chosen = read_json(directory, "sentence_bert_config.json").get("max_seq_length")
    if chosen is not None:
        return int(chosen)
    positions = config.get("max_position_embeddings")
    stated = read_json(directory, "tokenizer_config.json").get("model_max_length"), positions
    return int(min(tokens for tokens in stated if tokens is not None and tokens > 0))


def _dimensions(directory: str, modules: list[dict[str, Any]], dimensions: int) -> int:
    """Returns the number of values in a vector behind all modules, cut to the model's `truncate_dim` if it has one."""
    for module in modules:
        kind, own = _kind(module), read_json(directory, f"{module['path']}/config.json")
        if kind == "Pooling":
            modes = own.get("pooling_mode", [name for name in own if name.startswith("pooling_mode_") and own[name]])
            dimensions *= len(modes) if isinstance(modes, list) else 1
        elif kind == "Dense":
            dimensions = int(own["out_features"])
    return min(dimensions, read_json(directory, "config_sentence_transformers.json").get("truncate_dim") or dimensions)


def _prefix(directory: str) -> str:
    """Returns the prompt that sentence-transformers puts before each text unless it is told otherwise."""
    told = read_json(directory, "config_sentence_transformers.json")
    return str((told.get("prompts") or {}).get(told.get("default_prompt_name"), ""))

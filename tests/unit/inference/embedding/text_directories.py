"""Model directories with everything but weights, in which every word is a token."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

CLS, SEP = ("[CLS]", 1), ("[SEP]", 2)


def write_text_model(directory: Path, *, max_tokens: int | None = 8, **config: Any) -> Path:
    """Writes an embedding model of 4 values, with [CLS] in front of a text and [SEP] behind it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[CLS, SEP]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    files = {"config.json": {"hidden_size": 4, "max_position_embeddings": 16, **config}}
    if max_tokens is not None:
        files["sentence_bert_config.json"] = {"max_seq_length": max_tokens}
    for name, content in files.items():
        write(directory / name, content)
    return directory


def write_pair_model(directory: Path, **config: Any) -> Path:
    """Writes a cross-encoder of one score."""
    architecture = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    return write_text_model(directory, **architecture | config)


def write(path: Path, content: Any) -> None:
    """Writes a JSON file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))

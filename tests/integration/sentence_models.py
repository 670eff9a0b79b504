"""Real sentence-transformers models as the library itself saves them: small, of random weights, made here."""

from pathlib import Path

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

from tests.unit.learning.made_up_lengths import WORDS

DIMENSION, POSITIONS = 32, 128


def make_sentence_model(directory: Path, like_labse: bool = False) -> Path:
    """A BERT of two layers with mean pooling.

    LaBSE takes the vector of [CLS] instead, and adds a dense layer with tanh and a normalisation.
    """
    bert, whole = directory / "bert", directory / "sentence-model"
    config = _with_vocabulary(bert)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(bert)
        dense = Dense(DIMENSION, DIMENSION, activation_function=torch.nn.Tanh())
    tail = [Pooling(DIMENSION, "cls"), dense, Normalize()] if like_labse else [Pooling(DIMENSION, "mean")]
    SentenceTransformer(modules=[Transformer(str(bert)), *tail], device="cpu").save(str(whole))
    return whole


def make_cross_encoder(directory: Path) -> Path:
    """A BERT of two layers that gives a pair one score."""
    bert, whole = directory / "classifier", directory / "cross-encoder"
    config = _with_vocabulary(bert)
    config.num_labels = 1
    with torch.random.fork_rng():
        torch.manual_seed(1)
        BertForSequenceClassification(config).save_pretrained(bert)
    CrossEncoder(str(bert), device="cpu").save_pretrained(str(whole))
    return whole


def _with_vocabulary(bert: Path) -> BertConfig:
    bert.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
    (bert / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(bert / "vocab.txt")).save_pretrained(bert)
    return BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=DIMENSION,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
    )

"""Weights that are missing, or of another shape, are refused by name wherever transformers loads them."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, BertModel

from learning.features.whole_weights import IncompleteWeights, whole_weights_only
from tests.unit.inference.model_directories import Change, setting, weights, whole_model, without


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=16, max_position_embeddings=8, **shape)).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without("embeddings.word"), r"its files lack embeddings\.word_embeddings\.weight$"),
        (without("encoder."), r"its files lack encoder\.layer\.0\.[\w.]+, [\w.]+, [\w.]+ and 13 more"),
        (setting("config.json", num_hidden_layers=2), r"its files lack encoder\.layer\.1\."),
        (setting("config.json", vocab_size=17), r"has the shape \[16, 8\] where its config\.json means \[17, 8\]"),
        (
            weights(lambda stored: {f"base_model.{name}": value for name, value in stored.items()}),
            "its files lack embeddings",
        ),
    ],
)
def test_what_would_be_random_is_named(bert: Path, change: Change, why: str) -> None:
    change(bert)
    with whole_weights_only(), pytest.raises(IncompleteWeights, match=why):
        AutoModel.from_pretrained(bert)


def test_a_whole_encoder_is_loaded_also_without_the_head_that_nobody_reads(bert: Path) -> None:
    before = AutoModel.from_pretrained(bert).state_dict()
    without("pooler.")(bert)
    with whole_weights_only():
        after = AutoModel.from_pretrained(bert).state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items() if not name.startswith("pooler."))


def test_tied_weights_are_no_missing_ones_and_later_loadings_are_as_before(tmp_path: Path) -> None:
    whole_model(tmp_path, tie_word_embeddings=True)
    with whole_weights_only():
        AutoModelForCausalLM.from_pretrained(tmp_path)
    without("model.layers.0.mlp")(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path) is not None

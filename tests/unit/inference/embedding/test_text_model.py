"""What the files of a model for vectors or scores say, without torch."""

from pathlib import Path

import pytest

from inference.embedding.text_model import read_text_model, token_counter
from inference.engine_errors import UnreadableModel
from tests.unit.inference.embedding.text_directories import write, write_pair_model, write_text_model


def test_a_model_that_is_transformers_alone_has_its_hidden_size_and_the_least_of_its_lengths(tmp_path: Path) -> None:
    directory = write_text_model(tmp_path, max_tokens=None)
    model = read_text_model("small", str(directory))
    assert (model.name, model.scores_pairs, model.dimensions, model.max_tokens) == ("small", False, 4, 16)
    write(directory / "tokenizer_config.json", {"model_max_length": 12})
    assert read_text_model("small", str(directory)).max_tokens == 12


@pytest.mark.parametrize(
    ("pooling", "dimensions"),
    [
        ({"word_embedding_dimension": 4, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 4),
        ({"word_embedding_dimension": 4, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, 8),
        ({"embedding_dimension": 4, "pooling_mode": "cls"}, 4),
        ({"embedding_dimension": 4, "pooling_mode": ["mean", "max", "cls"]}, 12),
    ],
)
def test_the_modules_behind_the_transformer_decide_how_many_values_a_vector_has(
    pooling: object, dimensions: int, tmp_path: Path
) -> None:
    directory = write_text_model(tmp_path)
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    write(directory / "modules.json", modules)
    write(directory / "1_Pooling" / "config.json", pooling)
    assert read_text_model("small", str(directory)).dimensions == dimensions
    write(directory / "modules.json", [*modules, {"path": "2_Dense", "type": "x.Dense"}])
    write(directory / "2_Dense" / "config.json", {"in_features": dimensions, "out_features": 3})
    assert read_text_model("small", str(directory)).dimensions == 3


def test_special_tokens_and_the_models_own_prompt_count(tmp_path: Path) -> None:
    directory = write_text_model(tmp_path)
    assert read_text_model("small", str(directory)).item_tokens(["red house", "river"]) == [4, 3]
    prompts = {"prompts": {"query": "find this", "none": ""}, "default_prompt_name": "query"}
    write(directory / "config_sentence_transformers.json", prompts)
    model = read_text_model("small", str(directory))
    assert (model.prefix, model.item_tokens([" red house", "river"])) == ("find this", [6, 4])


def test_a_cross_encoder_reads_each_document_with_its_query(tmp_path: Path) -> None:
    model = read_text_model("pairs", str(write_pair_model(tmp_path)))
    assert (model.scores_pairs, model.dimensions) == (True, None)
    whole = [len(model.tokenizer.encode("which river", text)) for text in ("red house", "river")]
    assert model.item_tokens(["which river", "red house", "river"], queries=1) == whole == [7, 6]
    assert model.item_tokens(["a", "b c", "d", "e f g"], queries=2) == [5, 8]


def test_long_texts_are_counted_in_a_process_of_their_own_and_alike(tmp_path: Path) -> None:
    directory = write_text_model(tmp_path)
    model = read_text_model("small", str(directory))
    assert token_counter(str(directory))('["red house", "river"]') == "[2,1]"
    assert model.item_tokens(["word " * 5000, "river"]) == [5002, 3]


@pytest.mark.parametrize("labels", [{"0": "no", "1": "yes"}, {}])
def test_a_classifier_of_several_labels_is_refused(labels: dict[str, str], tmp_path: Path) -> None:
    directory = write_pair_model(tmp_path, id2label=labels)
    with pytest.raises(UnreadableModel, match="several scores, and reranking needs one"):
        read_text_model("pairs", str(directory))


def test_a_directory_of_something_else_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableModel, match=r"cannot read .*nothing"):
        read_text_model("x", str(tmp_path / "nothing"))
    directory = write_text_model(tmp_path / "other", hidden_size=None)
    with pytest.raises(UnreadableModel, match="it is no sentence-transformers model"):
        read_text_model("x", str(directory))

"""What the files of a model for vectors or scores say, which is read without torch."""

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Router, StaticEmbedding
from tokenizers import Tokenizer

from inference.embedding.model_loading import load_encode
from inference.embedding.text_model import STATIC_TOKENS, read_text_model, token_counter
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
    write(directory / "config_sentence_transformers.json", {"truncate_dim": 2})
    assert read_text_model("small", str(directory)).dimensions == 2


@pytest.mark.parametrize("cut", [None, 5])
def test_a_table_of_vectors_is_read_as_the_library_stores_it(cut: int | None, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_text_model(tmp_path / "words") / "tokenizer.json"))
    if cut is not None:
        tokenizer.enable_truncation(cut)
    made = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=6)], device="cpu", truncate_dim=4)
    made.save(str(tmp_path / "static"))
    model = read_text_model("static", str(tmp_path / "static"))
    assert (model.scores_pairs, model.dimensions, model.max_tokens) == (False, 4, cut or STATIC_TOKENS)
    assert (load_encode(model, "cpu")(["red house", "river"]) == made.encode(["red house", "river"])).all()


def test_routes_of_queries_and_documents_are_models_of_their_own(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_text_model(tmp_path / "words") / "tokenizer.json"))
    router = Router.for_query_document(
        query_modules=[StaticEmbedding(tokenizer, embedding_dim=6)],
        document_modules=[StaticEmbedding(tokenizer, embedding_dim=6)],
    )
    model = SentenceTransformer(modules=[router, Normalize()], device="cpu")
    model.save(str(tmp_path / "both"))
    with pytest.raises(UnreadableModel, match="serve each under a name of its own, saved by ") as told:
        read_text_model("both", str(tmp_path / "both"))
    exec(str(told.value).partition("saved by ")[2].replace("DIRECTORY", repr(str(tmp_path / "query"))))
    encode = load_encode(read_text_model("query", str(tmp_path / "query")), "cpu")
    assert (encode(["red house"]) == model.encode_query(["red house"])).all()
    assert not (encode(["red house"]) == model.encode_document(["red house"])).all()


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

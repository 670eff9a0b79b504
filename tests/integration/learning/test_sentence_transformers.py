"""A real sentence-transformers model, loaded by its path, as the length predictors' encoder."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from learning.features.text_encoders import UnusableEncoder, make_encoder
from learning.predictors.predictor_factory import PREDICTORS, make_predictor
from learning.store import digest, dump, load
from settings import Settings
from tests.integration.sentence_models import DIMENSION, make_sentence_model
from tests.unit.inference.model_directories import without
from tests.unit.learning.made_up_lengths import outcomes, prompt


@pytest.fixture(scope="module")
def sentence_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_sentence_model(tmp_path_factory.mktemp("encoder")))


def test_a_sentence_encoder_is_loaded_by_its_path_and_gives_unit_vectors(sentence_model: str) -> None:
    encoder = make_encoder(sentence_model)
    vectors = encoder.encode(["red house", "green river", ""])
    assert (encoder.name, encoder.dimension, vectors.shape) == (sentence_model, DIMENSION, (3, DIMENSION))
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1])
    assert not np.allclose(vectors[0], vectors[1])
    assert encoder.encode([]).shape == (0, DIMENSION)


def test_labse_is_loaded_with_its_pooling_dense_layer_and_normalisation_from_the_directory_of_its_name(
    tmp_path: Path,
) -> None:
    fetched = tmp_path / "models" / "labse"
    fetched.parent.mkdir()
    make_sentence_model(tmp_path, like_labse=True).rename(fetched)
    encoder = make_encoder(Settings(state_dir=tmp_path, encoder="labse").encoder)
    vectors = encoder.encode(["red house", "green river"])
    own = SentenceTransformer(str(fetched), device="cpu")
    assert [type(module).__name__ for module in own] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert vectors == pytest.approx(own.encode(["red house", "green river"]), abs=0.01)  # bfloat16 where native
    predictor = make_predictor("usin-mean", encoder)
    predictor.fit(outcomes(60))
    assert len(predictor.predict([prompt(text="red house")])) == 1


def test_an_encoder_without_all_its_weights_is_refused_by_their_names(tmp_path: Path) -> None:
    directory = make_sentence_model(tmp_path)
    without("encoder.layer.1.output.dense")(directory)
    with pytest.raises(UnusableEncoder, match=r"its files lack encoder\.layer\.1\.output\.dense\.bias, "):
        make_encoder(str(directory))


@pytest.mark.parametrize("name", sorted(set(PREDICTORS) - {"uilo", "raft"}))
def test_predictors_learn_with_it_and_find_it_again_from_the_store(name: str, sentence_model: str) -> None:
    predictor = make_predictor(name, make_encoder(sentence_model))
    predictor.fit(outcomes(120))
    stored = dump(predictor)
    asked = [o.prompt for o in outcomes(10, seed=1)]
    again = load(stored, digest(stored))
    assert again.encoder.name == sentence_model
    assert again.predict(asked) == predictor.predict(asked)

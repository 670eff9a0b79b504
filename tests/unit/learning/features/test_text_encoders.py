"""The default encoder: hashed words in vectors like LaBSE's."""

import numpy as np
import pytest

from learning.features.text_encoders import make_encoder


def test_the_hashing_encoder_gives_vectors_like_labse() -> None:
    vectors = make_encoder("hashing").encode(["one text", "another", ""])
    assert vectors.shape == (3, 768)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 0])
    assert make_encoder("hashing").encode([]).shape == (0, 768)


def test_alike_texts_get_alike_vectors() -> None:
    a, b, c = make_encoder("hashing").encode(["fix this java code", "fix this java method", "grüße aus wien"])
    assert a @ b > a @ c


def test_an_encoder_is_loaded_once() -> None:
    assert make_encoder("hashing") is make_encoder("hashing")

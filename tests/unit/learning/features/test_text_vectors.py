"""Which texts are encoded, and what stands in for the vectors of the others."""

from collections.abc import Sequence

import numpy as np

from learning.features.hashed_text import DIMENSION
from learning.features.text_encoders import Vectors, make_encoder
from learning.features.text_vectors import read_texts
from learning.predictors.length_predictor import Prompt


class FirstLetters:
    """An encoder whose vector is the first letter; it records what it was asked."""

    name = "letters"
    dimension = 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.asked += texts
        return np.array([[ord(text[0])] for text in texts], np.float32).reshape(-1, 1)


def prompt(text: str, application: str = "chat") -> Prompt:
    return Prompt(application, "Answer.", text, 1, 2, 100)


def test_only_wanted_texts_are_encoded() -> None:
    encoder = FirstLetters()
    read = read_texts([prompt(text) for text in "abc"], encoder, np.array([True, False, True]))
    assert encoder.asked == ["a", "c"]
    assert read.encoded[:, 0].tolist() == [97, 0, 99]
    assert read.hashed.shape == (3, DIMENSION)


def test_the_hashing_encoder_adds_nothing_to_hashed_words() -> None:
    read = read_texts([prompt("one"), prompt("two")], make_encoder("hashing"), np.array([True, True]))
    assert read.encoded.shape == (2, 0)


def test_the_same_text_in_two_applications_is_told_apart() -> None:
    hashed = read_texts(
        [prompt("one"), prompt("one"), prompt("one", "code")], make_encoder("hashing"), np.ones(3, bool)
    ).hashed.toarray()
    assert np.array_equal(hashed[0], hashed[1])
    assert not np.array_equal(hashed[0], hashed[2])

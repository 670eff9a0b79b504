"""Which texts are encoded, and what stands in for the vectors of the others."""

from collections.abc import Sequence

import numpy as np

from learning.features.hashed_text import DIMENSION
from learning.features.text_encoders import Vectors, make_encoder
from learning.features.text_vectors import read_texts


class FirstLetters:
    """An encoder whose vector is the first letter; it records what it was asked."""

    name = "letters"
    dimension = 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.asked += texts
        return np.array([[ord(text[0])] for text in texts], np.float32).reshape(-1, 1)


def test_only_wanted_texts_are_encoded() -> None:
    encoder = FirstLetters()
    read = read_texts(["a", "b", "c"], encoder, np.array([True, False, True]))
    assert encoder.asked == ["a", "c"]
    assert read.encoded[:, 0].tolist() == [97, 0, 99]
    assert read.hashed.shape == (3, DIMENSION)


def test_the_hashing_encoder_adds_nothing_to_hashed_words() -> None:
    read = read_texts(["one", "two"], make_encoder("hashing"), np.array([True, True]))
    assert read.encoded.shape == (2, 0)

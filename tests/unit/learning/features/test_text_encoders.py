"""A text is encoded once for as long as it is remembered."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from learning.features.text_encoders import UnusableEncoder, VectorCache, make_encoder


class Lengths:
    """Encodes a text as its length, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str]) -> npt.NDArray[np.float32]:
        self.asked.append(texts)
        return np.array([[len(text), 1] for text in texts], np.float32)


def test_a_text_that_comes_twice_in_one_call_is_encoded_once() -> None:
    encode = Lengths()
    assert VectorCache(encode, 2).encode(["a", "bb", "a"])[:, 0].tolist() == [1, 2, 1]
    assert encode.asked == [["a", "bb"]]


def test_the_least_recently_used_vectors_are_forgotten_first() -> None:
    encode = Lengths()
    cache = VectorCache(encode, 2, most=2)
    cache.encode(["a", "bb"])
    cache.encode(["a"])
    cache.encode(["ccc"])
    assert len(cache) == 2
    cache.encode(["a", "bb"])
    assert encode.asked == [["a", "bb"], ["ccc"], ["bb"]]


def test_more_texts_in_one_call_than_are_remembered_get_their_vectors_all_the_same() -> None:
    cache = VectorCache(Lengths(), 2, most=1)
    assert cache.encode(["a", "bb", "ccc"])[:, 0].tolist() == [1, 2, 3]
    assert len(cache) == 1


def test_the_hashing_encoder_gives_vectors_like_labse() -> None:
    vectors = make_encoder("hashing").encode(["one text", "another", ""])
    assert vectors.shape == (3, 768)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 0])
    assert make_encoder("hashing").encode([]).shape == (0, 768)


def test_a_directory_that_does_not_exist_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    began_with = set(sys.modules)
    with pytest.raises(UnusableEncoder, match=r"there is no such directory"):
        make_encoder(str(tmp_path / "none"))
    assert not {"torch", "sentence_transformers"} & (set(sys.modules) - began_with)

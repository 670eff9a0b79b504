"""Sparse vectors of texts, and the weights of rare words."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer

from learning.features.intent_features import PATTERNS, WEIGHT, intent_features
from learning.features.length_predictor import Prompt
from learning.features.text_encoders import Vectors, make_encoder
from learning.features.text_vectors import BYTE_VALUES, DIMENSION, WORD_VALUES, hash_texts, rarity_weights, read_texts


def test_hashed_text_does_not_depend_on_the_batch() -> None:
    texts = ["one", "two words", "", "x" * 9000]
    together = hash_texts(texts).toarray()
    assert np.array_equal(together, np.concatenate([hash_texts([t]).toarray() for t in texts]))


def test_rare_words_weigh_more_and_rows_keep_their_mean_length() -> None:
    texts = hash_texts([f"everywhere name{i}" for i in range(40)])
    weights = rarity_weights(texts)
    everywhere, name = (hash_texts([word]).indices[0] for word in ("everywhere", "name7"))
    assert weights[everywhere] < weights[name]
    assert np.array_equal(weights[WORD_VALUES + BYTE_VALUES :], np.ones(DIMENSION - WORD_VALUES - BYTE_VALUES))
    words = (texts * weights).toarray()[:, :WORD_VALUES]
    assert np.mean(np.sum(words**2, axis=1)) == pytest.approx(1)


def test_intent_features_tell_a_story_from_a_name() -> None:
    long, short = intent_features("write a story of five paragraphs"), intent_features("who wrote faust?")
    assert long[-1] == pytest.approx(WEIGHT / 3 * np.log1p(5 * 80))
    assert short[-1] == 0
    names = list(PATTERNS)
    assert {n for n, v in zip(names, long, strict=False) if v} == {"a long form", "a creation"}
    assert {n for n, v in zip(names, short, strict=False) if v} == {"a fact", "knowledge"}


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


def test_the_same_text_in_two_applications_is_told_apart() -> None:
    hashed = read_texts(
        [prompt("one"), prompt("one"), prompt("one", "code")], make_encoder("hashing"), np.ones(3, bool)
    ).hashed.toarray()
    assert np.array_equal(hashed[0], hashed[1])
    assert not np.array_equal(hashed[0], hashed[2])


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
@example(["", "Write three words, please: ünïcödé words", "😀", "a b a b"])
def test_words_are_those_of_scikit_learn_s_hashing(texts: list[str]) -> None:
    vectorizer = HashingVectorizer(n_features=WORD_VALUES, binary=True, ngram_range=(1, 2), dtype=np.float32)
    words = hash_texts(texts)[:, :WORD_VALUES]
    assert np.allclose(words.toarray(), vectorizer.transform(text.lower() for text in texts).toarray())

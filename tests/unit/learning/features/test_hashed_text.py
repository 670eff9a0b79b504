"""Sparse vectors of texts, and the weights of rare words."""

import numpy as np
import pytest

from learning.features.hashed_text import BYTE_VALUES, DIMENSION, WORD_VALUES, hash_texts, rarity_weights


def test_hashed_text_is_of_unit_length_in_both_parts() -> None:
    rows = hash_texts(["write a story about rivers", "字符"]).toarray()
    assert rows.shape == (2, DIMENSION)
    assert np.linalg.norm(rows[:, :WORD_VALUES], axis=1) == pytest.approx([1, 1])
    assert np.linalg.norm(rows[:, WORD_VALUES : WORD_VALUES + BYTE_VALUES], axis=1) == pytest.approx([1, 1])
    assert hash_texts([""]).toarray().sum() == 0


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

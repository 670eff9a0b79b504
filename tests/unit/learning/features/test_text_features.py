"""Encoders, the paper's compression, and what our own features read from a text."""

from collections.abc import Sequence

import numpy as np
import pytest

from learning.estimators.ridge_regression import PENALTY, fit_ridge
from learning.estimators.robust_regression import fit_line
from learning.features.compressed_features import (
    application_values,
    compress,
    user_input_length,
    user_values,
)
from learning.features.hashed_text import BYTE_VALUES, DIMENSION, WORD_VALUES, hashed, rarity
from learning.features.intent_features import PATTERNS, WEIGHT, asks
from learning.features.lexical_features import KINDS, lexical
from learning.features.text_encoders import make_encoder
from tests.unit.learning.made_up_lengths import prompt


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


def test_compression_sums_groups_over_the_root_of_their_size() -> None:
    vectors = np.arange(768, dtype=np.float32)[None]
    compressed = compress(vectors, 16)
    assert compressed.shape == (1, 16)
    assert compressed[0, 0] == pytest.approx(sum(range(48)) / np.sqrt(48))  # 768 / 16 = 48 values a group
    assert compressed[0, 15] == pytest.approx(sum(range(720, 768)) / np.sqrt(48))


def test_compression_takes_any_dimension() -> None:
    assert compress(np.ones((2, 50), np.float32), 16).shape == (2, 16)
    assert compress(np.ones((1, 50), np.float32), 16)[0] @ np.ones(16) == pytest.approx(
        sum(np.sqrt(size) for size in np.diff(np.linspace(0, 50, 17).astype(int)))
    )


class Letters:
    """An encoder that is not hashing: how many of the first 32 codes a text has."""

    name, dimension = "letters", 32

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[text.count(chr(code)) for code in range(97, 129)] for text in texts], np.float32)


def test_the_papers_features_are_twenty_one() -> None:
    prompts = [prompt(words=7), prompt("other", 9)]
    parts = [user_input_length(prompts), application_values(prompts, Letters()), user_values(prompts, Letters())]
    assert [part.shape for part in parts] == [(2, 1), (2, 4), (2, 16)]
    assert parts[0].tolist() == [[7], [9]]
    assert not np.array_equal(parts[1][0], parts[1][1])  # the instructions differ


def test_hashed_words_are_not_summed_with_others() -> None:
    encoder = make_encoder("hashing")
    assert np.array_equal(user_values([prompt(text="red house")], encoder), encoder.encode(["red house"]))


def test_lexical_features_count_what_they_say() -> None:
    text = "How many?\n1. List 12 THINGS, (please)!"
    row = lexical([prompt(words=9, text=text)])[0]
    shares = dict(zip(KINDS, row[9 : 9 + len(KINDS)] * (len(text) + 1), strict=True))
    assert shares["question"] == pytest.approx(1, abs=1e-4)
    assert shares["line"] == pytest.approx(1, abs=1e-4)
    assert shares["digit"] == pytest.approx(3, abs=1e-4)
    assert shares["upper"] == pytest.approx(8, abs=1e-4)  # H, L, THINGS
    assert row[7] == pytest.approx(np.log1p(12))  # the largest number


def test_hashed_text_is_of_unit_length_in_both_parts() -> None:
    rows = hashed(["write a story about rivers", "字符"]).toarray()
    assert rows.shape == (2, DIMENSION)
    assert np.linalg.norm(rows[:, :WORD_VALUES], axis=1) == pytest.approx([1, 1])
    assert np.linalg.norm(rows[:, WORD_VALUES : WORD_VALUES + BYTE_VALUES], axis=1) == pytest.approx([1, 1])
    assert hashed([""]).toarray().sum() == 0


def test_hashed_text_does_not_depend_on_the_batch() -> None:
    texts = ["one", "two words", "", "x" * 9000]
    together = hashed(texts).toarray()
    assert np.array_equal(together, np.concatenate([hashed([t]).toarray() for t in texts]))


def test_asks_tell_a_story_from_a_name() -> None:
    long, short = asks("write a story of five paragraphs"), asks("who wrote faust?")
    assert long[-1] == pytest.approx(WEIGHT / 3 * np.log1p(5 * 80))
    assert short[-1] == 0
    names = list(PATTERNS)
    assert {n for n, v in zip(names, long, strict=False) if v} == {"a long form", "a creation"}
    assert {n for n, v in zip(names, short, strict=False) if v} == {"a fact", "knowledge"}


def test_the_line_is_not_tilted_by_a_few_answers() -> None:
    inputs = np.arange(1.0, 101.0)
    lengths = 2 * inputs + 5
    lengths[[3, 50, 97]] = 5000
    line = fit_line(inputs, lengths)
    assert (line.slope, line.intercept) == pytest.approx((2, 5), abs=0.1)


def test_the_line_does_not_reach_far_beyond_the_longest_input() -> None:
    inputs = np.arange(1.0, 101.0)
    line = fit_line(inputs, 3 * inputs)
    assert line.at(np.array([10_000.0]))[0] == pytest.approx(3 * 1.5 * np.quantile(inputs, 0.99), rel=0.01)


def test_spread_grows_with_the_input_where_errors_do() -> None:
    chance = np.random.default_rng(0)
    inputs = chance.uniform(1, 100, 2000)
    line = fit_line(inputs, inputs + 0.2 * inputs * chance.normal(size=2000))
    near, far = line.spread(np.array([10.0, 90.0]))
    assert far / near == pytest.approx(9, rel=0.5)


def test_left_out_predictions_are_what_a_ridge_without_the_row_says() -> None:
    texts = hashed([f"word{i % 7} other{i % 3} {i}" for i in range(30)])
    targets = np.random.default_rng(0).normal(size=30)
    _, _, left_out = fit_ridge(texts, targets)
    rows = texts.toarray()
    centred = rows - rows.mean(axis=0)
    mean = targets.mean()
    others = np.arange(30) != 4
    gram = centred[others] @ centred[others].T + PENALTY * np.eye(29)
    expected = centred[4] @ centred[others].T @ np.linalg.solve(gram, (targets - mean)[others]) + mean
    assert left_out[4] == pytest.approx(expected, abs=1e-4)


def test_ridge_weights_give_the_fitted_values() -> None:
    texts = hashed([f"word{i % 5}" for i in range(40)])
    targets = np.array([float(i % 5) for i in range(40)])
    weights, offset, _ = fit_ridge(texts, targets)
    said = texts @ weights + offset
    assert np.corrcoef(said, targets)[0, 1] > 0.99


def test_rare_words_weigh_more_and_rows_keep_their_mean_length() -> None:
    texts = hashed([f"everywhere name{i}" for i in range(40)])
    weights = rarity(texts)
    everywhere, name = (hashed([word]).indices[0] for word in ("everywhere", "name7"))
    assert weights[everywhere] < weights[name]
    assert np.array_equal(weights[WORD_VALUES + BYTE_VALUES :], np.ones(DIMENSION - WORD_VALUES - BYTE_VALUES))
    words = (texts * weights).toarray()[:, :WORD_VALUES]
    assert np.mean(np.sum(words**2, axis=1)) == pytest.approx(1)

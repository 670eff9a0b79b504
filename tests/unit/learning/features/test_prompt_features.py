"""The paper's features and their compression."""

from collections.abc import Sequence

import numpy as np
import pytest

from learning.features.prompt_features import (
    CHARACTER_KINDS,
    application_features,
    compress,
    lexical_features,
    user_features,
    user_input_length,
)
from tests.unit.learning.made_up_lengths import prompt


def test_compression_sums_groups_over_the_root_of_their_size() -> None:
    vectors = np.arange(768, dtype=np.float32)[None]
    compressed = compress(vectors, 16)
    assert compressed.shape == (1, 16)
    assert compressed[0, 0] == pytest.approx(sum(range(48)) / np.sqrt(48))  # 768 / 16 = 48 values a group
    assert compressed[0, 15] == pytest.approx(sum(range(720, 768)) / np.sqrt(48))


class Letters:
    """An encoder that is not hashing: how many of the first 32 codes a text has."""

    name, dimension = "letters", 32

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[text.count(chr(code)) for code in range(97, 129)] for text in texts], np.float32)


def test_the_papers_features_are_twenty_one() -> None:
    prompts = [prompt(words=7), prompt("other", 9)]
    parts = [user_input_length(prompts), application_features(prompts, Letters()), user_features(prompts, Letters())]
    assert [part.shape for part in parts] == [(2, 1), (2, 4), (2, 16)]
    assert parts[0].tolist() == [[7], [9]]
    assert not np.array_equal(parts[1][0], parts[1][1])  # the instructions differ


def test_lexical_features_count_characters_and_read_numbers() -> None:
    text = "How many?\n1. List 12 THINGS, (please)!"
    row = lexical_features([prompt(words=9, text=text)])[0]
    shares = dict(zip(CHARACTER_KINDS, row[9 : 9 + len(CHARACTER_KINDS)] * (len(text) + 1), strict=True))
    assert shares["question"] == pytest.approx(1, abs=1e-4)
    assert shares["line"] == pytest.approx(1, abs=1e-4)
    assert shares["digit"] == pytest.approx(3, abs=1e-4)
    assert shares["upper"] == pytest.approx(8, abs=1e-4)  # H, L, THINGS
    assert row[7] == pytest.approx(np.log1p(12))  # the largest number

"""What the look of a text gives."""

import numpy as np
import pytest

from learning.features.lexical_features import CHARACTER_KINDS, lexical_features
from tests.unit.learning.made_up_lengths import prompt


def test_lexical_features_count_characters_and_read_numbers() -> None:
    text = "How many?\n1. List 12 THINGS, (please)!"
    row = lexical_features([prompt(words=9, text=text)])[0]
    shares = dict(zip(CHARACTER_KINDS, row[9 : 9 + len(CHARACTER_KINDS)] * (len(text) + 1), strict=True))
    assert shares["question"] == pytest.approx(1, abs=1e-4)
    assert shares["line"] == pytest.approx(1, abs=1e-4)
    assert shares["digit"] == pytest.approx(3, abs=1e-4)
    assert shares["upper"] == pytest.approx(8, abs=1e-4)  # H, L, THINGS
    assert row[7] == pytest.approx(np.log1p(12))  # the largest number

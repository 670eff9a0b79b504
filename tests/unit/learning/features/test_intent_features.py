"""What an English request asks for."""

import numpy as np
import pytest

from learning.features.intent_features import PATTERNS, WEIGHT, intent_features


def test_intent_features_tell_a_story_from_a_name() -> None:
    long, short = intent_features("write a story of five paragraphs"), intent_features("who wrote faust?")
    assert long[-1] == pytest.approx(WEIGHT / 3 * np.log1p(5 * 80))
    assert short[-1] == 0
    names = list(PATTERNS)
    assert {n for n, v in zip(names, long, strict=False) if v} == {"a long form", "a creation"}
    assert {n for n, v in zip(names, short, strict=False) if v} == {"a fact", "knowledge"}

"""Rows replayed from what was read of them: which predictions are compared, and at which tokens."""

import numpy as np
import pytest

from benchmarks.remaining_lengths import Readings, replay, scores
from inference.local.row_probe import READ_EVERY
from learning.predictors.length_predictor import Prediction


def readings(rows: int, seed: int = 0) -> Readings:
    """Rows of 20 to 200 tokens, read every READ_EVERY of them; the first of their states tells what is left of them."""
    random = np.random.default_rng(seed)
    tokens = random.integers(20, 200, rows)
    at = [(row, generated) for row in range(rows) for generated in range(0, tokens[row], READ_EVERY)]
    left = np.array([tokens[row] - generated for row, generated in at])
    return Readings(
        row=np.array([row for row, _ in at], np.float64),
        known=np.array([(10, generated, 256, 0, 0) for _, generated in at], np.float64),
        states=np.column_stack([np.log(left), random.normal(size=(len(at), 3))]),
        tokens=tokens.astype(np.float64),
        cut=np.zeros(rows),
    )


def test_a_probe_that_sees_what_is_left_ranks_it_where_the_arrivals_prediction_cannot() -> None:
    seen = replay(readings(200), range(200), [Prediction(100, 180)] * 200)
    figures = scores(seen, 64, learned=150)
    assert figures["in_service"] == 1
    assert figures["tau_probe"] > 0.8 > figures["tau_arrival"] == pytest.approx(0, abs=0.01)
    assert figures["mae_probe"] < figures["mae_arrival"]


def test_a_row_is_compared_once_at_its_first_reading_from_there_on() -> None:
    seen = replay(readings(20), range(20), [Prediction(100, 180)] * 20)
    of_rows = readings(20).tokens
    assert scores(seen, 64, learned=0)["rows"] == np.count_nonzero(of_rows > 64)
    assert scores(seen, 64, learned=15)["rows"] == np.count_nonzero(of_rows[15:] > 64)
    assert scores(seen, 64, learned=0)["in_service"] == 0

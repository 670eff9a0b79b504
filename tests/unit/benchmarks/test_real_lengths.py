"""Learning from nothing in order of arrival: what is known when, and in which stretch a request is scored."""

import pytest

from benchmarks.real_lengths import curve, learn, learners
from learning.predictors.cold_start import RunningRegression
from learning.predictors.length_predictor import Prediction
from tests.unit.learning.made_up_lengths import outcomes


def test_a_request_is_predicted_from_the_answers_before_it_alone() -> None:
    arrived = outcomes(45, noise=0.0)
    predicted = learn(RunningRegression(), arrived)
    knows_ten = RunningRegression()
    knows_ten.fit(arrived[:10])
    assert predicted[0].upper_tokens == arrived[0].prompt.limit_tokens
    assert predicted[10:20] == knows_ten.predict([o.prompt for o in arrived[10:20]])


def test_scores_are_those_between_checkpoints_and_means_over_orders() -> None:
    arrived = outcomes(30)
    exact = [Prediction(o.generated_tokens, o.generated_tokens) for o in arrived]
    longer = [Prediction(o.generated_tokens + 10, o.generated_tokens + 10) for o in arrived]
    short = [Prediction(1, 1) for _ in arrived[:20]]
    first, second = curve([(arrived, exact), (arrived, [*short, *longer[20:]])])
    assert (first["after"], first["until"], second["after"], second["until"]) == (0, 20, 20, 30)
    assert (second["rmse"], second["mae"]) == pytest.approx((5, 5))
    assert second["coverage"] == 1


def test_without_a_sentence_encoder_only_hashing_is_compared() -> None:
    assert list(learners(None)) == [
        "running regression",
        "uilo",
        "raft, hashing",
        "inst, hashing",
        "usin, hashing",
        "forest, hashing",
    ]

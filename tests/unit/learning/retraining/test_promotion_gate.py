"""The verdict on a candidate, and the detection of noise."""

from dataclasses import replace

from learning.estimators.metrics import score
from learning.features.length_predictor import LengthPredictor
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.retraining.promotion_gate import (
    constant_baseline,
    is_learnable,
    noisy_spans,
    promotion_verdict,
    relative_error,
)
from tests.unit.learning.made_up_lengths import later, outcomes, shuffled


def untrained() -> LengthPredictor:
    return make_predictor("usin", make_encoder("hashing"))


def test_errors_are_relative_to_the_constant_baseline() -> None:
    predictor = untrained()
    predictor.fit(outcomes(300, slope=8))
    test = outcomes(200, slope=8, seed=1)
    assert relative_error(predictor, test) < 0.1
    assert relative_error(predictor, shuffled(test)) > 1.5
    assert noisy_spans(predictor, None, test) == []
    assert len(noisy_spans(predictor, None, shuffled(test))) == 3  # 200 outcomes are three spans


def test_a_candidate_that_has_learned_noise_does_not_hide_it() -> None:
    current, candidate = untrained(), untrained()
    current.fit(outcomes(300))
    candidate.fit([*outcomes(300), *later(shuffled(outcomes(600, seed=1)), 300)])
    held_out = [*outcomes(240, seed=2), *later(shuffled(outcomes(240, seed=3)), 240)]
    spans = noisy_spans(candidate, current, held_out)
    assert [first for first, _ in spans] == [240, 300, 360, 420]  # spans of 60, one a second


def test_answers_are_learnable_if_a_model_beats_the_constant() -> None:
    predictor = untrained()
    predictor.fit(outcomes(300))
    test = outcomes(100, seed=5)
    assert is_learnable(predictor, test)
    assert not is_learnable(predictor, shuffled(test))
    predictor.fit([replace(o, generated_tokens=7) for o in outcomes(100)])
    assert is_learnable(predictor, [replace(o, generated_tokens=7) for o in test])  # all alike: no rank, no error


def test_a_candidate_that_ranks_worse_is_kept_back_even_with_smaller_errors() -> None:
    exact = outcomes(50, noise=0)
    lengths = [o.generated_tokens for o in exact]
    good = score(constant_baseline(exact), lengths)
    better = replace(good, rmse=1.0, tau=0.5)
    assert promotion_verdict({"candidate": better, "baseline": good, "current": replace(good, rmse=2.0, tau=0.9)}) == (
        False,
        "ranks worse than the version in service",
    )

"""What every length predictor promises, and what tells them apart."""

import numpy as np
import pytest

from learning.estimators.metrics import score
from learning.features.length_predictor import LengthPredictor, Outcome
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import PREDICTORS, NeedsModel, UnknownPredictor, make_predictor
from tests.unit.learning.made_up_lengths import outcomes, prompt, wordy_outcomes

LEARNING = sorted(set(PREDICTORS) - {"uilo"})


def fitted(name: str, learned: list[Outcome]) -> LengthPredictor:
    predictor = make_predictor(name, make_encoder("hashing"))
    predictor.fit(learned)
    return predictor


@pytest.mark.parametrize("name", sorted(PREDICTORS))
def test_before_it_has_learned_a_predictor_predicts_the_user_input_length(name: str) -> None:
    predictor = make_predictor(name, make_encoder("hashing"))
    predicted = predictor.predict([prompt(words=7), prompt(words=0), prompt(words=5000)])
    assert [p.tokens for p in predicted] == [7, 1, 1000]
    assert [p.upper_tokens for p in predicted] == [1000, 1000, 1000]  # nothing is known: the limit is reserved
    assert predictor.predict([]) == []


@pytest.mark.parametrize("name", LEARNING)
def test_a_predictor_learns_a_slope(name: str) -> None:
    predictor = fitted(name, outcomes(300))
    test = outcomes(100, seed=1)
    scores = score(predictor.predict([o.prompt for o in test]), [o.generated_tokens for o in test])
    assert scores.rmse < 8
    assert scores.tau > 0.85
    assert scores.coverage > 0.8


@pytest.mark.parametrize("name", sorted(PREDICTORS))
def test_predictions_stay_within_one_and_the_limit(name: str) -> None:
    predictor = fitted(name, outcomes(100))
    for p in predictor.predict([prompt(words=50, limit=20), prompt(words=0, text="", limit=1)]):
        assert 1 <= p.tokens <= p.upper_tokens <= 20


@pytest.mark.parametrize("name", sorted(PREDICTORS))
def test_censored_answers_are_not_learned_as_lengths(name: str) -> None:
    complete = outcomes(100)
    cut_off = [Outcome(o.prompt, 1, censored=True, at=o.at) for o in outcomes(100, seed=2)]
    with_censored, without = fitted(name, complete + cut_off), fitted(name, complete)
    asked = [o.prompt for o in outcomes(20, seed=3)]
    assert with_censored.predict(asked) == without.predict(asked)


@pytest.mark.parametrize("name", LEARNING)
def test_refitting_forgets_what_was_learned_before(name: str) -> None:
    predictor = fitted(name, outcomes(100, slope=20))
    predictor.fit(outcomes(100, slope=1))
    anew = fitted(name, outcomes(100, slope=1))
    asked = [o.prompt for o in outcomes(20, seed=3)]
    assert predictor.predict(asked) == anew.predict(asked)


@pytest.mark.parametrize("name", ["raft", "inst"])
def test_words_are_lost_on_predictors_that_do_not_read(name: str) -> None:
    test = wordy_outcomes(100, seed=1)
    predicted = fitted(name, wordy_outcomes(300)).predict([o.prompt for o in test])
    assert score(predicted, [o.generated_tokens for o in test]).rmse > 60


def test_the_forest_reads_words() -> None:
    test = wordy_outcomes(100, seed=1)
    predicted = fitted("forest", wordy_outcomes(300)).predict([o.prompt for o in test])
    assert score(predicted, [o.generated_tokens for o in test]).rmse < 30


def test_the_forest_keeps_applications_apart() -> None:
    predictor = fitted(
        "forest", outcomes(150, slope=4, application="long") + outcomes(150, slope=0.5, application="short")
    )
    long, short = predictor.predict([prompt("long", 30), prompt("short", 30)])
    assert long.tokens == pytest.approx(123, rel=0.15)
    assert short.tokens == pytest.approx(18, rel=0.25)


@pytest.mark.parametrize("name", LEARNING)
def test_the_same_outcomes_make_the_same_predictor(name: str) -> None:
    asked = [o.prompt for o in outcomes(20, seed=3)]
    assert fitted(name, outcomes(100)).predict(asked) == fitted(name, outcomes(100)).predict(asked)


@pytest.mark.parametrize("name", LEARNING)
def test_a_prediction_does_not_depend_on_what_else_is_in_the_batch(name: str) -> None:
    predictor = fitted(name, outcomes(200) + wordy_outcomes(200))
    asked = [o.prompt for o in outcomes(10, seed=3) + wordy_outcomes(10, seed=4)]
    assert predictor.predict(asked) == [predictor.predict([p])[0] for p in asked]


@pytest.mark.parametrize("name", LEARNING)
def test_hostile_texts_are_predicted_all_the_same(name: str) -> None:
    predictor = fitted(name, outcomes(100))
    texts = ["", "\x00", "\ud800", "字" * 3000, "a" * 100_000, "\n" * 50, "9" * 400]
    predicted = predictor.predict([prompt(words=len(t) // 4, text=t) for t in texts])
    assert len(predicted) == len(texts)


def test_unknown_names_and_missing_models_are_named() -> None:
    with pytest.raises(UnknownPredictor, match="there are uilo"):
        make_predictor("oracle", make_encoder("hashing"))
    with pytest.raises(NeedsModel, match="pooled"):
        make_predictor("pooled", make_encoder("hashing"))


def test_the_upper_quantile_of_noisy_answers_covers_them() -> None:
    predictor = fitted("forest", outcomes(600, noise=15))
    test = outcomes(300, seed=5, noise=15)
    predicted = predictor.predict([o.prompt for o in test])
    covered = np.mean([o.generated_tokens <= p.upper_tokens for o, p in zip(test, predicted, strict=True)])
    assert 0.85 <= covered <= 0.95


def test_the_papers_forest_predicts_the_mean_of_its_leaves_where_the_others_predict_the_median() -> None:
    learned = [Outcome(prompt(words=9), tokens, at=float(n)) for n, tokens in enumerate([10, 10, 10, 10, 100] * 20)]
    (median,), (mean,) = (fitted(name, learned).predict([prompt(words=9)]) for name in ("usin", "usin-mean"))
    assert median.tokens == 10
    assert 20 < mean.tokens < 36  # the mean is 28

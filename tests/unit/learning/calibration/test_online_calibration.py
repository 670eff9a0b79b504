"""Online correction: systematic errors go, the upper quantile covers what it says, drift is seen."""

import numpy as np
import pytest

from learning.calibration.calibrated_predictor import CalibratedPredictor
from learning.calibration.drift_guard import drift
from learning.calibration.online_calibration import Calibration
from learning.features.text_encoders import make_encoder
from learning.predictors.length_predictor import Outcome, Prediction
from learning.predictors.predictor_factory import make_predictor
from tests.unit.learning.made_up_lengths import outcomes, prompt

LIMIT = 10_000


def test_nothing_observed_nothing_corrected() -> None:
    assert Calibration().correct("a", Prediction(30, 50), LIMIT) == Prediction(30, 50)


@pytest.mark.parametrize("factor", [0.4, 2.0, 3.0])
def test_a_systematic_error_is_corrected_within_50_outcomes(factor: float) -> None:
    chance, calibration = np.random.default_rng(0), Calibration()
    for _ in range(200):  # all was well before
        calibration.observe("a", [(Prediction(100, 130), round(float(chance.normal(100, 20))))])
    for _ in range(50):
        calibration.observe("a", [(Prediction(100, 130), round(factor * float(chance.normal(100, 20))))])
    assert calibration.correct("a", Prediction(100, 130), LIMIT).tokens == pytest.approx(100 * factor, rel=0.12)


def test_a_small_change_of_luck_is_not_a_systematic_error() -> None:
    calibration = Calibration()
    for length in [90, 110] * 20 + [110] * 6:
        calibration.observe("a", [(Prediction(100, 130), length)])
    assert calibration.bias("a") == 1.0


def test_one_applications_error_leaves_others_alone() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.observe("a", [(Prediction(100, 130), 250)])
    assert calibration.correct("b", Prediction(100, 130), LIMIT) == Prediction(100, 130)


@pytest.mark.parametrize("spread", [2.0, 20.0, 80.0])
@pytest.mark.parametrize("mean", [12, 200])
def test_the_upper_quantile_covers_ninety_percent_of_whatever_comes(spread: float, mean: int) -> None:
    chance, calibration = np.random.default_rng(1), Calibration()
    covered = []
    for _ in range(400):
        length = max(1, round(float(chance.normal(mean, spread))))
        covered.append(length <= calibration.correct("a", Prediction(mean, mean + 25), LIMIT).upper_tokens)
        calibration.observe("a", [(Prediction(mean, mean + 25), length)])
    assert np.mean(covered[-300:]) == pytest.approx(0.9, abs=0.03)


def test_corrections_stay_within_the_limit() -> None:
    calibration = Calibration()
    for _ in range(60):
        calibration.observe("a", [(Prediction(100, 120), 400)])
    assert calibration.correct("a", Prediction(100, 120), 150) == Prediction(150, 150)


def test_a_predictor_in_service_learns_from_outcomes_without_being_refitted() -> None:
    predictor = make_predictor("forest", make_encoder("hashing"))
    predictor.fit(outcomes(200, slope=2))
    service = CalibratedPredictor(predictor)
    service.observe(outcomes(60, slope=6, seed=1))
    assert service.predict([prompt(words=30)])[0].tokens == pytest.approx(183, rel=0.2)
    assert service.remaining(prompt(words=30), 10).tokens == pytest.approx(183, rel=0.2)
    assert service.name == "forest"


def test_cut_off_answers_count_as_long_as_their_limit_and_cancelled_ones_not_at_all() -> None:
    service = CalibratedPredictor(make_predictor("uilo", make_encoder("hashing")))
    asked = prompt(words=10, limit=100)
    service.observe([Outcome(asked, 40, censored=True)] * 50)
    assert service.predict([asked])[0].tokens == 10
    service.observe([Outcome(asked, 100, censored=True)] * 50)
    assert service.predict([asked])[0].tokens == 100


def test_fitting_anew_forgets_the_corrections_of_the_old_model() -> None:
    service = CalibratedPredictor(make_predictor("uilo", make_encoder("hashing")))
    service.observe(outcomes(60, slope=6))
    service.fit(outcomes(60, slope=1))
    assert service.calibration.bias("echo") == 1.0


def served(application: str, pairs: list[tuple[int, int]]) -> list[Outcome]:
    return [Outcome(prompt(application), length, False, said, 2 * said) for said, length in pairs]


def test_drift_is_judged_by_application() -> None:
    good = served("good", [(i, i + 3) for i in range(20, 120)])
    bad = served("bad", [(20 + i, 200 - i) for i in range(100)])
    alike = served("alike", [(5, 5 + i % 2) for i in range(100)])
    states = drift([*good, *bad, *alike, *served("rare", [(1, 900)] * 5)])
    assert sorted(states) == ["alike", "bad", "good"]
    assert states["good"].tau == pytest.approx(1.0)
    assert states["bad"].tau == pytest.approx(-1.0)
    assert [states[name].trusted for name in ("good", "alike", "bad")] == [True, True, False]


def test_drift_ignores_what_was_cut_off_or_never_predicted() -> None:
    cut_off = [Outcome(prompt(), 50, True, 10, 20)] * 50
    assert drift([*cut_off, *[Outcome(prompt(), 50)] * 50]) == {}

"""Online correction: systematic errors go, and the upper quantile covers the share that it promises."""

from collections.abc import Sequence

import numpy as np
import pytest

from learning.calibration import MOST_REMEMBERED, CalibratedPredictor, OnlineCalibration
from learning.features.length_predictor import Outcome, Prediction, Prompt
from learning.features.text_encoders import make_encoder
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.predictor_factory import make_predictor
from tests.unit.learning.made_up_lengths import outcomes, prompt

LIMIT = 10_000


@pytest.mark.parametrize("factor", [0.4, 2.0, 3.0])
def test_a_systematic_error_is_corrected_within_50_outcomes(factor: float) -> None:
    rng, calibration = np.random.default_rng(0), OnlineCalibration()
    for _ in range(200):  # all was well before
        calibration.observe("a", [(Prediction(100, 130), round(float(rng.normal(100, 20))))])
    for _ in range(50):
        calibration.observe("a", [(Prediction(100, 130), round(factor * float(rng.normal(100, 20))))])
    assert calibration.correct("a", Prediction(100, 130), LIMIT).tokens == pytest.approx(100 * factor, rel=0.12)


def test_a_small_excess_of_longer_answers_is_not_a_systematic_error() -> None:
    calibration = OnlineCalibration()
    for length in [90, 110] * 20 + [110] * 6:
        calibration.observe("a", [(Prediction(100, 130), length)])
    assert calibration.correct("a", Prediction(100, 130), LIMIT).tokens == 100


def test_one_applications_error_leaves_others_alone() -> None:
    calibration = OnlineCalibration()
    for _ in range(50):
        calibration.observe("a", [(Prediction(100, 130), 250)])
    assert calibration.correct("b", Prediction(100, 130), LIMIT) == Prediction(100, 130)


@pytest.mark.parametrize("spread", [2.0, 20.0, 80.0])
@pytest.mark.parametrize("mean", [12, 200])
def test_the_upper_quantile_covers_ninety_percent_of_whatever_comes(spread: float, mean: int) -> None:
    rng, calibration = np.random.default_rng(1), OnlineCalibration()
    covered = []
    for _ in range(400):
        length = max(1, round(float(rng.normal(mean, spread))))
        covered.append(length <= calibration.correct("a", Prediction(mean, mean + 25), LIMIT).upper_tokens)
        calibration.observe("a", [(Prediction(mean, mean + 25), length)])
    assert np.mean(covered[-300:]) == pytest.approx(0.9, abs=0.03)


def test_corrections_stay_within_the_limit() -> None:
    calibration = OnlineCalibration()
    for _ in range(60):
        calibration.observe("a", [(Prediction(100, 120), 400)])
    assert calibration.correct("a", Prediction(100, 120), 150) == Prediction(150, 150)


def test_a_predictor_in_service_learns_from_outcomes_without_being_refitted() -> None:
    predictor = make_predictor("forest", make_encoder("hashing"))
    predictor.fit(outcomes(200, slope=2))
    service = CalibratedPredictor(predictor)
    service.observe(outcomes(60, slope=6, seed=1))
    assert service.predict([prompt(words=30)])[0].tokens == pytest.approx(183, rel=0.2)
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
    asked = [prompt(words=30)]
    assert service.predict(asked) == service.predictor.predict(asked)


def test_an_outcome_is_not_predicted_again_and_what_is_remembered_is_bounded() -> None:
    asked: list[Prompt] = []

    class Counted(UserInputLengthPredictor):
        def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
            asked.extend(prompts)
            return super().predict(prompts)

    service = CalibratedPredictor(Counted())
    several = [prompt(words=n) for n in (1, 2, 3, 2)]
    first = service.predict(several)
    service.observe([Outcome(one, 5) for one in several])
    assert len(asked) == 3
    assert [one.tokens for one in first] == [1, 2, 3, 2]
    service.predict([prompt(words=n) for n in range(10, 10 + MOST_REMEMBERED)])
    service.predict([prompt(words=1)])
    assert len(asked) == 3 + MOST_REMEMBERED + 1

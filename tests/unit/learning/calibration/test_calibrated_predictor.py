"""A predictor in service: corrected by outcomes between two fits."""

import pytest

from learning.calibration.calibrated_predictor import CalibratedPredictor
from learning.features.text_encoders import make_encoder
from learning.predictors.length_predictor import Outcome
from learning.predictors.predictor_factory import make_predictor
from tests.unit.learning.made_up_lengths import outcomes, prompt


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

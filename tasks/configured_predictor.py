"""The length predictor that the settings choose, untrained; for predictor, trainer and `magnus train`."""

from learning.features.text_encoders import make_encoder
from learning.predictors.length_predictor import LengthPredictor
from learning.predictors.predictor_factory import PerceptionTuning, make_predictor
from settings import Settings


def make_configured(settings: Settings) -> LengthPredictor:
    """MAGNUS_PREDICTOR with its encoder or model; raises NeedsModel, or what loading the encoder raises."""
    tuning = PerceptionTuning(settings.perception_form, settings.perception_target, settings.perception_epochs)
    return make_predictor(settings.predictor, make_encoder(settings.encoder), settings.model, tuning)

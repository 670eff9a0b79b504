"""Makes the length predictor that the settings name."""

from learning.features.length_predictor import LengthPredictor
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import PerceptionTuning, make_predictor
from settings import Settings


def make_configured(settings: Settings) -> LengthPredictor:
    """Returns MAGNUS_PREDICTOR untrained; raises NeedsModel, or what loading its encoder raises."""
    name: str = settings.predictor
    chosen = settings.parameters
    if chosen.magnus == "published" and "predictor" not in settings.model_fields_set:
        name = "usin-mean"
    tuning = PerceptionTuning(chosen.perception_form, chosen.perception_target, chosen.perception_epochs)
    return make_predictor(name, make_encoder(settings.encoder), settings.model, tuning)

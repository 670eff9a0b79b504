"""Every generation length predictor by name."""

from collections.abc import Callable

from learning.features.text_encoders import Encoder
from learning.predictors.forest import ForestPredictor
from learning.predictors.inst_usin import SemanticFeaturesPredictor
from learning.predictors.length_predictor import LengthPredictor
from learning.predictors.perception import PerceptionPredictor
from learning.predictors.pooled_states import PooledStatesPredictor
from learning.predictors.raft import TaskForestsPredictor
from learning.predictors.uilo import UserInputLengthPredictor

PREDICTORS: dict[str, Callable[[Encoder], LengthPredictor]] = {
    "uilo": lambda encoder: UserInputLengthPredictor(),
    "raft": lambda encoder: TaskForestsPredictor(),
    "inst": lambda encoder: SemanticFeaturesPredictor("inst", encoder),
    "usin": lambda encoder: SemanticFeaturesPredictor("usin", encoder),
    "forest": ForestPredictor,
}

# These ask a causal LM, which is given by its directory or hub id.
MODEL_PREDICTORS: dict[str, Callable[[str], LengthPredictor]] = {
    "pooled": PooledStatesPredictor,
    "perception": PerceptionPredictor,
    "perception-only": lambda model: PerceptionPredictor(model, "only"),
    "perception-in-advance": lambda model: PerceptionPredictor(model, "in_advance"),
}


class UnknownPredictor(Exception):
    """No length predictor has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown length predictor {name}; there are {', '.join([*PREDICTORS, *MODEL_PREDICTORS])}")


class NeedsModel(Exception):
    """A predictor that asks the served model was made without one."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the length predictor {name} asks the served model: give its directory or hub id")


def make_predictor(name: str, encoder: Encoder, model: str | None = None) -> LengthPredictor:
    """A predictor of this name that has learned nothing yet; raises UnknownPredictor, NeedsModel."""
    if name in PREDICTORS:
        return PREDICTORS[name](encoder)
    if name not in MODEL_PREDICTORS:
        raise UnknownPredictor(name)
    if model is None:
        raise NeedsModel(name)
    return MODEL_PREDICTORS[name](model)

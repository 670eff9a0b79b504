"""Every generation length predictor by name."""

from collections.abc import Callable

from learning.features.text_encoders import Encoder
from learning.predictors.forest import ForestPredictor
from learning.predictors.inst_usin import SemanticForest
from learning.predictors.length_predictor import LengthPredictor
from learning.predictors.perception import Perception
from learning.predictors.pooled_states import PooledStates
from learning.predictors.raft import ForestPerTask
from learning.predictors.uilo import UserInputLength

PREDICTORS: dict[str, Callable[[Encoder], LengthPredictor]] = {
    "uilo": lambda encoder: UserInputLength(),
    "raft": lambda encoder: ForestPerTask(),
    "inst": lambda encoder: SemanticForest("inst", encoder),
    "usin": lambda encoder: SemanticForest("usin", encoder),
    "forest": ForestPredictor,
}

BY_THE_MODEL: dict[str, Callable[[str], LengthPredictor]] = {  # these ask a causal LM, by directory or hub id
    "pooled": PooledStates,
    "perception": Perception,
    "perception-only": lambda model: Perception(model, "only"),
    "perception-in-advance": lambda model: Perception(model, "in_advance"),
}


class UnknownPredictor(Exception):
    """No length predictor has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown length predictor {name}; there are {', '.join([*PREDICTORS, *BY_THE_MODEL])}")


class NeedsModel(Exception):
    """A predictor that asks the served model was made without one."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the length predictor {name} asks the served model: give its directory or hub id")


def make_predictor(name: str, encoder: Encoder, model: str | None = None) -> LengthPredictor:
    """A predictor of this name that has learned nothing yet; raises UnknownPredictor, NeedsModel."""
    if name in PREDICTORS:
        return PREDICTORS[name](encoder)
    if name not in BY_THE_MODEL:
        raise UnknownPredictor(name)
    if model is None:
        raise NeedsModel(name)
    return BY_THE_MODEL[name](model)

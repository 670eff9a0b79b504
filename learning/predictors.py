"""Every generation length predictor by name."""

from collections.abc import Callable

from learning.encoders import Encoder
from learning.length import LengthPredictor
from learning.raft import ForestPerTask
from learning.semantic import SemanticForest
from learning.stacked import StackedForest
from learning.uilo import UserInputLength

PREDICTORS: dict[str, Callable[[Encoder], LengthPredictor]] = {
    "uilo": lambda encoder: UserInputLength(),
    "raft": lambda encoder: ForestPerTask(),
    "inst": lambda encoder: SemanticForest("inst", encoder),
    "usin": lambda encoder: SemanticForest("usin", encoder),
    "forest": StackedForest,
}


class UnknownPredictor(Exception):
    """No length predictor has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown length predictor {name}; there are {', '.join(sorted(PREDICTORS))}")


def make_predictor(name: str, encoder: Encoder) -> LengthPredictor:
    """A predictor of this name that has learned nothing yet; raises UnknownPredictor."""
    if name not in PREDICTORS:
        raise UnknownPredictor(name)
    return PREDICTORS[name](encoder)

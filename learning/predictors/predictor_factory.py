"""Makes every generation length predictor from its name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from learning.features.length_predictor import LengthPredictor
from learning.features.text_encoders import Encoder
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.forest import ForestPredictor
from learning.predictors.hidden_states import LenTokenPredictor, PooledStatesPredictor
from learning.predictors.length_bins import Target
from learning.predictors.paper_forests import SemanticFeaturesPredictor, TaskForestsPredictor
from learning.predictors.perception import EPOCHS, PerceptionPredictor
from learning.retraining.training_set import TrainingSetBounds

Form = Literal["number", "len_token"]
# A predictor that asks the language model is fitted and judged on at most this many answers: each costs a forward pass.
MOST_MODEL_OUTCOMES = 512


@dataclass(frozen=True, slots=True)
class PerceptionTuning:
    """Tuning options of `perception`: the form of its prediction, the length that it predicts, the epochs."""

    form: Form = "number"
    target: Target = "longest"
    epochs: int = EPOCHS


PAPERS_TUNING = PerceptionTuning()  # instruction tuning, the longest answer, three epochs

PREDICTORS: dict[str, Callable[[Encoder], LengthPredictor]] = {
    "uilo": lambda encoder: UserInputLengthPredictor(),
    "raft": lambda encoder: TaskForestsPredictor(),
    "inst": lambda encoder: SemanticFeaturesPredictor("inst", encoder),
    "usin": lambda encoder: SemanticFeaturesPredictor("usin", encoder),
    "usin-mean": lambda encoder: SemanticFeaturesPredictor("usin-mean", encoder),
    "forest": ForestPredictor,
}


def _perception(model: str, tuning: PerceptionTuning) -> LengthPredictor:
    if tuning.form == "len_token":
        return LenTokenPredictor(model, target=tuning.target, epochs=tuning.epochs)
    return PerceptionPredictor(model, target=tuning.target, epochs=tuning.epochs)


# The predictors that ask a causal LM, which is given by its directory or hub id.
MODEL_PREDICTORS: dict[str, Callable[[str, PerceptionTuning], LengthPredictor]] = {
    "pooled": lambda model, _: PooledStatesPredictor(model),
    "perception": _perception,
    "perception-only": lambda model, _: PerceptionPredictor(model, "only"),
    "pia": lambda model, _: PerceptionPredictor(model, "in_advance"),
}
# The predictors that need no fit. Until any other predictor is fitted, `RunningRegression` predicts in its place.
NEED_NO_FIT = ("uilo", "pia")


class UnknownPredictor(Exception):
    """No length predictor has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown length predictor {name}; there are {', '.join([*PREDICTORS, *MODEL_PREDICTORS])}")


class NeedsModel(Exception):
    """A predictor asks the served model, but no model was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the length predictor {name} asks the served model: give its directory or hub id")


def bounds_of(name: str) -> TrainingSetBounds:
    """Return the bounds of the training set for the predictor of this name."""
    return TrainingSetBounds(outcomes=MOST_MODEL_OUTCOMES) if name in MODEL_PREDICTORS else TrainingSetBounds()


def make_predictor(
    name: str, encoder: Encoder, model: str | None = None, tuning: PerceptionTuning = PAPERS_TUNING
) -> LengthPredictor:
    """Return an unfitted predictor of this name; raise UnknownPredictor or NeedsModel."""
    if name in PREDICTORS:
        return PREDICTORS[name](encoder)
    if name not in MODEL_PREDICTORS:
        raise UnknownPredictor(name)
    if model is None or "http:" in model or "https:" in model:  # from a server's address, only its tokenizer is known
        raise NeedsModel(name)
    return MODEL_PREDICTORS[name](model, tuning)

"""Makes every generation length predictor from its name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from learning.features.text_encoders import Encoder
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.forest import ForestPredictor
from learning.predictors.hidden_states import LenTokenPredictor, PooledStatesPredictor
from learning.predictors.length_bins import Target
from learning.predictors.length_predictor import LengthPredictor
from learning.predictors.paper_forests import SemanticFeaturesPredictor, TaskForestsPredictor
from learning.predictors.perception import EPOCHS, PerceptionPredictor
from learning.retraining.training_set import TrainingSetBounds

Form = Literal["number", "len_token"]
# Most answers to fit and judge a predictor that asks the language model: each costs a forward pass.
MOST_MODEL_OUTCOMES = 512


@dataclass(frozen=True, slots=True)
class PerceptionTuning:
    """Tuning options of `perception`: the form of its prediction, the target among a prompt's answers, the epochs."""

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


# These ask a causal LM, given by its directory or hub id.
MODEL_PREDICTORS: dict[str, Callable[[str, PerceptionTuning], LengthPredictor]] = {
    "pooled": lambda model, _: PooledStatesPredictor(model),
    "perception": _perception,
    "perception-only": lambda model, _: PerceptionPredictor(model, "only"),
    "pia": lambda model, _: PerceptionPredictor(model, "in_advance"),
}
# These need no fit. Until the others are fitted, `RunningRegression` predicts instead.
NEED_NO_FIT = ("uilo", "pia")


class UnknownPredictor(Exception):
    """No length predictor has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown length predictor {name}; there are {', '.join([*PREDICTORS, *MODEL_PREDICTORS])}")


class NeedsModel(Exception):
    """A predictor that asks the served model needs one, and none was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"the length predictor {name} asks the served model: give its directory or hub id")


def bounds_of(name: str) -> TrainingSetBounds:
    """Return how much of the log the predictor of this name is fitted on."""
    return TrainingSetBounds(outcomes=MOST_MODEL_OUTCOMES) if name in MODEL_PREDICTORS else TrainingSetBounds()


def make_predictor(
    name: str, encoder: Encoder, model: str | None = None, tuning: PerceptionTuning = PAPERS_TUNING
) -> LengthPredictor:
    """Return an unfitted predictor of this name; raise UnknownPredictor or NeedsModel."""
    if name in PREDICTORS:
        return PREDICTORS[name](encoder)
    if name not in MODEL_PREDICTORS:
        raise UnknownPredictor(name)
    if model is None or "http:" in model or "https:" in model:  # a server gives only its tokenizer
        raise NeedsModel(name)
    return MODEL_PREDICTORS[name](model, tuning)

"""Predictors that learn from nothing, request by request in order of arrival, as the service lets them learn."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from benchmarks.real_lengths.running_quantiles import RunningQuantiles
from learning.calibration.calibrated_predictor import CalibratedPredictor
from learning.features.text_encoders import HASHING, make_encoder
from learning.metrics import score
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.predictor_factory import make_predictor
from learning.predictors.running_regression import RunningRegression
from learning.retraining.known_lengths import known_lengths

CHECKPOINTS = (0, 20, 60, 200, 600)  # answers after which every predictor is fitted anew and a new row begins
IN_FLIGHT = 10  # requests that are predicted before the first of their answers is known; a divisor of the checkpoints

FIRST_FIT = 60  # answers before a service fits its first model; until then it predicts by a regression on all of them
Row = dict[str, float]


class FromColdStart:
    """A predictor as the service uses it: `RunningRegression` until there are answers enough to fit it."""

    def __init__(self, fitted: CalibratedPredictor) -> None:
        self._fitted = fitted
        self._present: RunningRegression | CalibratedPredictor = RunningRegression()

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Fit the predictor, or the regression while there are too few outcomes."""
        self._present = self._fitted if len(outcomes) >= FIRST_FIT else RunningRegression()
        self._present.fit(outcomes)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """As the present one does."""
        self._present.observe(outcomes)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """As the present one does."""
        return self._present.predict(prompts)


Learner = RunningQuantiles | RunningRegression | CalibratedPredictor | FromColdStart


def learners(encoder: str | None) -> dict[str, Callable[[], Learner]]:
    """What is compared, by name: each begins with nothing; `encoder` is the sentence encoder, if there is one."""

    def calibrated(name: str, text_encoder: str = HASHING) -> CalibratedPredictor:
        return CalibratedPredictor(make_predictor(name, make_encoder(text_encoder)))

    made: dict[str, Callable[[], Learner]] = {
        "running quantiles": RunningQuantiles,
        "running regression": RunningRegression,
        "uilo": partial(calibrated, "uilo"),
    }
    for name in ("raft", "inst", "usin", "forest"):
        made[f"{name}, hashing"] = lambda name=name: FromColdStart(calibrated(name))  # type: ignore[misc]
    if encoder:
        for name in ("usin", "forest"):
            made[f"{name}, encoder"] = lambda name=name: FromColdStart(calibrated(name, encoder))  # type: ignore[misc]
    return made


def learn(learner: Learner, outcomes: Sequence[Outcome]) -> list[Prediction]:
    """The prediction of each request, from the answers of those before it that had ended."""
    predictions: list[Prediction] = []
    bounds = _bounds(len(outcomes))
    for first, last in pairwise(bounds):
        learner.fit(known_lengths(outcomes[:first]))
        for start in range(first, last, IN_FLIGHT):
            arrived = outcomes[start : min(start + IN_FLIGHT, last)]
            predictions += learner.predict([o.prompt for o in arrived])
            learner.observe(arrived)
    return predictions


def curve(runs: Sequence[tuple[Sequence[Outcome], Sequence[Prediction]]]) -> list[Row]:
    """Scores from each checkpoint to the next, the mean over runs of the same length in other orders of arrival."""
    rows = []
    for first, last in pairwise(_bounds(len(runs[0][0]))):
        scores = [
            score(predicted[first:last], [o.generated_tokens for o in outcomes[first:last]]).as_dict()
            for outcomes, predicted in runs
        ]
        means = {name: sum(s[name] for s in scores) / len(runs) for name in ("rmse", "mae", "tau", "coverage")}
        rows.append({"after": first, "until": last, **{name: round(mean, 4) for name, mean in means.items()}})
    return rows


def _bounds(answers: int) -> list[int]:
    return [*(checkpoint for checkpoint in CHECKPOINTS if checkpoint < answers), answers]

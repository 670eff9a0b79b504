"""Predictors fitted on the answers of one part of the prompts and scored on those of the other (Table 3)."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.perception.changed_answers import score_statements
from learning.features.text_encoders import HASHING, make_encoder
from learning.metrics import score
from learning.predictors.hidden_states import LenTokenPredictor
from learning.predictors.length_predictor import LengthPredictor, Outcome, Prediction, Prompt, clamp_prediction
from learning.predictors.perception import PerceptionPredictor
from learning.predictors.predictor_factory import make_predictor
from scheduling.request import COVERAGE

# Prompts of one step of instruction tuning. The 16 of the service would give a quarter of the steps, and only a few
# hundred answers are tuned on here.
TUNING_BATCH = 4


class MedianPredictor:
    """Predicts the median and the upper quantile of the answers that it was fitted on, of all or of the application."""

    name = "median"

    def __init__(self, by_application: bool) -> None:
        self._by_application = by_application
        self._quantiles: dict[str, tuple[float, float]] = {}

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn the quantiles; those of all answers stand for an application that has none."""
        lengths = defaultdict(list)
        for outcome in outcomes:
            lengths[""].append(outcome.generated_tokens)
            if self._by_application:
                lengths[outcome.prompt.application].append(outcome.generated_tokens)
        self._quantiles = {name: tuple(np.quantile(own, [0.5, COVERAGE])) for name, own in lengths.items()}

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Predict the quantiles of each prompt's group, at most its limit."""
        groups = [prompt.application if prompt.application in self._quantiles else "" for prompt in prompts]
        return [
            clamp_prediction(*self._quantiles[group], prompt.limit_tokens)
            for group, prompt in zip(groups, prompts, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A predictor of the table; one that is not `fitted` predicts without having learned anything."""

    make: Callable[[], LengthPredictor]
    fitted: bool = True


def contestants(model: str, epochs: int) -> dict[str, Contestant]:
    """List the predictors by name, cheap ones first."""
    named = partial(make_predictor, model=model)
    hashing, of_epochs = make_encoder(HASHING), "1 epoch" if epochs == 1 else f"{epochs} epochs"
    return {
        "median of all": Contestant(partial(MedianPredictor, by_application=False)),
        "median of the application": Contestant(partial(MedianPredictor, by_application=True)),
        "uilo": Contestant(partial(named, "uilo", hashing)),
        "forest, hashing": Contestant(partial(named, "forest", hashing)),
        "pooling + MLP": Contestant(partial(named, "pooled", hashing)),
        "perception in advance": Contestant(partial(named, "pia", hashing), fitted=False),
        "perception only": Contestant(partial(named, "perception-only", hashing), fitted=False),
        "before instruction tuning": Contestant(partial(named, "perception", hashing), fitted=False),
        f"instruction tuning, {of_epochs}": Contestant(
            partial(PerceptionPredictor, model, epochs=epochs, batch=TUNING_BATCH)
        ),
        f"[LEN] token, {of_epochs}": Contestant(partial(LenTokenPredictor, model, epochs=epochs)),
    }


def measure(contestant: Contestant, training: Sequence[Outcome], test: Sequence[Outcome]) -> dict[str, Any]:
    """Fit a predictor on `training` and test it on `test`; returns scores, times and statements.

    A test answer that was cut off counts with its length; `complete` has the scores without such answers.
    """
    predictor, prompts = contestant.make(), [outcome.prompt for outcome in test]
    began, began_cpu = time.perf_counter(), time.process_time()
    if contestant.fitted:
        predictor.fit(training)
    fit_s, fit_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    predictor.predict([training[0].prompt])  # loads the model unless it is loaded
    began, began_cpu = time.perf_counter(), time.process_time()
    predictions = predictor.predict(prompts)
    each_ms = 1e3 / len(test)
    wall_ms, cpu_ms = (time.perf_counter() - began) * each_ms, (time.process_time() - began_cpu) * each_ms
    row: dict[str, Any] = {"scores": _scores(predictions, test)}
    complete = [
        (prediction, outcome) for prediction, outcome in zip(predictions, test, strict=True) if not outcome.censored
    ]
    if complete:
        row["complete"] = _scores([prediction for prediction, _ in complete], [outcome for _, outcome in complete])
    row["predicted_tokens_mean"] = round(float(np.mean([p.tokens for p in predictions])), 1)
    row["different_predictions"] = len({p.tokens for p in predictions})
    if contestant.fitted:
        row |= {"fit_s": round(fit_s, 2), "fit_cpu_s": round(fit_cpu_s, 2)}
    row |= {"ms_a_prediction": round(wall_ms, 3), "cpu_ms_a_prediction": round(cpu_ms, 3)}
    if isinstance(predictor, PerceptionPredictor):
        stated = predictor.printed_lengths(prompts)
        row["stated"] = score_statements(stated, [outcome.generated_tokens for outcome in test])
        row["numbers"] = stated
    return row


def _scores(predictions: Sequence[Prediction], outcomes: Sequence[Outcome]) -> dict[str, float]:
    return score(predictions, [outcome.generated_tokens for outcome in outcomes]).as_dict()

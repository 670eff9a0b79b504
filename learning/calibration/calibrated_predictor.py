"""A length predictor in service: what the model says, corrected by what came of its predictions since it was fitted."""

from collections import defaultdict
from collections.abc import Sequence

from learning.calibration.online_calibration import Calibration
from learning.estimators.length_distribution import bounded
from learning.predictors.length_predictor import LengthPredictor, Outcome, Prediction, Prompt


class CalibratedPredictor:
    """Another predictor with its systematic errors and its coverage corrected online."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self.predictor = predictor
        self.calibration = Calibration()

    @property
    def name(self) -> str:
        """The corrected predictor's name."""
        return self.predictor.name

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Fit the predictor anew; what was observed of the old one is forgotten."""
        self.predictor.fit(outcomes)
        self.calibration = Calibration()

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from outcomes that the predictor was not fitted on.

        They are predicted again, because what was served may be another version's word. An answer cut off at its
        limit counts as one of that length, since predictions end there too; other censored ones say nothing.
        """
        ended = [o for o in outcomes if not o.censored or o.generated_tokens >= o.prompt.limit_tokens]
        predicted = self.predictor.predict([o.prompt for o in ended])
        pairs = defaultdict(list)
        for outcome, prediction in zip(ended, predicted, strict=True):
            pairs[outcome.prompt.application].append((prediction, outcome.generated_tokens))
        for application, of_one in pairs.items():
            self.calibration.observe(application, of_one)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length, corrected."""
        predicted = self.predictor.predict(prompts)
        return [
            self.calibration.correct(prompt.application, prediction, prompt.limit_tokens)
            for prompt, prediction in zip(prompts, predicted, strict=True)
        ]

    def remaining(self, prompt: Prompt, generated: int) -> Prediction:
        """Median and upper quantile of the whole length, given that `generated` tokens are out, corrected."""
        bias = self.calibration.bias(prompt.application)
        predicted = self.predictor.remaining(prompt, round(generated / bias))
        corrected = self.calibration.correct(prompt.application, predicted, prompt.limit_tokens)
        return bounded(max(corrected.tokens, generated + 1), corrected.upper_tokens, prompt.limit_tokens)

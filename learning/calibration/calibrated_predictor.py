"""A length predictor in service: its predictions, corrected by the outcomes seen since it was fitted."""

from collections import defaultdict
from collections.abc import Sequence

from learning.calibration.online_calibration import OnlineCalibration
from learning.predictors.length_predictor import LengthPredictor, Outcome, Prediction, Prompt


class CalibratedPredictor:
    """Another predictor with its systematic errors and its coverage corrected online."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self.predictor = predictor
        self.calibration = OnlineCalibration()

    @property
    def name(self) -> str:
        """The corrected predictor's name."""
        return self.predictor.name

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Fit the predictor anew and forget the corrections of the old one."""
        self.predictor.fit(outcomes)
        self.calibration = OnlineCalibration()

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from outcomes that the predictor was not fitted on.

        Their prompts are predicted again, because the predictions that were served may be another version's. An answer
        cut off at its limit counts as one of that length, since predictions end there too. Other censored answers are
        left out.
        """
        ended = [o for o in outcomes if not o.censored or o.generated_tokens >= o.prompt.limit_tokens]
        predicted = self.predictor.predict([o.prompt for o in ended])
        by_application = defaultdict(list)
        for outcome, prediction in zip(ended, predicted, strict=True):
            by_application[outcome.prompt.application].append((prediction, outcome.generated_tokens))
        for application, pairs in by_application.items():
            self.calibration.observe(application, pairs)

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length, corrected."""
        predicted = self.predictor.predict(prompts)
        return [
            self.calibration.correct(prompt.application, prediction, prompt.limit_tokens)
            for prompt, prediction in zip(prompts, predicted, strict=True)
        ]

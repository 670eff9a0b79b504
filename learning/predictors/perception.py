"""Predictors that ask the served model to print the length of its answer (Sequence Scheduling 3).

The untuned model is asked for the length in advance of its answer (`pia`) or instead of it (`perception-only`). The
tuned one (`perception`) was trained by LoRA to print the upper bound of the bin that the prompt's answers fall into.
The answer itself is always generated from the user's prompt alone, which is how the paper keeps the question from
changing the answer (appendix C). torch is loaded when the model is first needed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.length_bins import Target, bin_upper_bound, bin_width, target_bins
from learning.predictors.length_predictor import Arrays, Outcome, Prediction, Prompt, clamp_prediction
from scheduling.request import COVERAGE

if TYPE_CHECKING:
    from learning.predictors.language_model import LanguageModel

# The paper's questions, verbatim (Table 1 and appendix A). An untuned model is asked for words, because the paper
# found that it estimates words better than tokens.
QUESTIONS = {
    "in_advance": "Before responding to the above instruction, you have to predict the length of your response. Print "
    "the estimated number of words in your response in the first line. Then change to a new line to respond to the "
    "instruction.",
    "only": "Don't output the response for the above instruction. Instead, you need to predict the number of words in "
    "your response. Output only one number.",
    "tuned": "Don't output the response for the above instruction. Instead, you need to predict the number of tokens "
    "in your response. Output only one number.",
}
NAMES = {"in_advance": "pia", "only": "perception-only", "tuned": "perception"}
EPOCHS = 3  # epochs and projections are those of the paper's appendix A
QUERY_AND_KEY = ("q_proj", "k_proj")


class PerceptionPredictor:
    """Asks the model, `in_advance`, `only` or `tuned`; if it prints no number, the user input length is predicted."""

    def __init__(
        self,
        source: str,
        mode: str = "tuned",
        *,
        target: Target = "longest",
        epochs: int = EPOCHS,
        rate: float | None = None,
        batch: int = 16,
        projections: Sequence[str] = QUERY_AND_KEY,
    ) -> None:
        """Take the tuning's settings; the default rate follows the model's size (`lora_tuning.learning_rate`)."""
        self.source, self.mode, self.projections = source, mode, tuple(projections)
        self.target, self.epochs, self.rate, self.batch = target, epochs, rate, batch
        self.median_ratio = self.upper_ratio = 1.0  # the ratios of median and upper quantile to the printed number
        self._weights: Arrays = {}
        self._loaded: LanguageModel | None = None

    @property
    def name(self) -> str:
        """The name under which `make_predictor` makes it."""
        return NAMES[self.mode]

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Tune the model if the mode is `tuned`, and learn the ratios of answer lengths to printed numbers."""
        complete = [o for o in outcomes if not o.censored]
        if not complete:
            return
        if self.mode == "tuned":
            # Imported here because it loads torch, which processes with other predictors must not.
            from learning.predictors.lora_tuning import adapter_weights, tune

            self._weights, self._loaded = {}, None
            model = self._model()
            width = bin_width(complete)
            targets = target_bins(complete, self.target, width)
            examples = [
                (model.render(prompt, QUESTIONS[self.mode]), str(bin_upper_bound(number, width)))
                for prompt, number in targets.items()
            ]
            tune(model, examples, epochs=self.epochs, rate=self.rate, batch=self.batch, seed=0)
            self._weights = adapter_weights(model.model)
        printed = self.printed_lengths([o.prompt for o in complete])
        ratios = [o.generated_tokens / n for o, n in zip(complete, printed, strict=True) if n]
        if ratios:
            # a tuned model prints tokens, the others words
            self.median_ratio = 1.0 if self.mode == "tuned" else float(np.median(ratios))
            self.upper_ratio = max(self.median_ratio, float(np.quantile(ratios, COVERAGE)))

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return the printed number times the learned ratios of the median and of the upper quantile."""
        fallback = UserInputLengthPredictor().predict(prompts)
        return [
            clamp_prediction(n * self.median_ratio, n * self.upper_ratio, prompt.limit_tokens) if n else otherwise
            for n, prompt, otherwise in zip(self.printed_lengths(prompts), prompts, fallback, strict=True)
        ]

    def printed_lengths(self, prompts: Sequence[Prompt]) -> list[int | None]:
        """Return the first number that the model prints for each prompt, or None (the paper's failure)."""
        if not prompts:
            return []
        model = self._model()
        return model.first_numbers([model.render(p, QUESTIONS[self.mode]) for p in prompts])

    def _model(self) -> "LanguageModel":
        """Return the model, loaded at its first use: the shared one, or for `tuned` one of its own with adapters."""
        # Imported here because they load torch, which processes with other predictors must not; peft is an extra.
        if self.mode != "tuned":
            from learning.predictors.language_model import shared_language_model

            return shared_language_model(self.source)
        if self._loaded is None:
            from learning.predictors.lora_tuning import load_with_adapters

            self._loaded = load_with_adapters(self.source, self.projections, self._weights)
        return self._loaded

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`: the adapters, and the model's name."""
        settings = {
            "source": np.asarray(self.source),
            "mode": np.asarray(self.mode),
            "targets": np.array(self.projections),
        }
        weights = {f"weights {name}": values for name, values in self._weights.items()}
        ratios = {"median_ratio": np.asarray(self.median_ratio), "upper_ratio": np.asarray(self.upper_ratio)}
        return settings | weights | ratios

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]), str(arrays["mode"]), projections=arrays["targets"].tolist())
        predictor.median_ratio = float(arrays.get("median_ratio", 1.0))  # models of earlier releases have none
        predictor.upper_ratio = float(arrays["upper_ratio"])
        prefix = "weights "
        predictor._weights = {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
        return predictor

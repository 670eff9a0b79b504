"""Predictors that ask the served model to print the length of its answer (Sequence Scheduling 3).

The untuned model is asked to print the length before its answer (`pia`) or instead of it (`perception-only`). The tuned
model (`perception`) was trained by LoRA to print the upper bound of the bin that the prompt's answers fall into. The
answer that the client gets is always generated from the user's prompt alone, so that the question cannot change it, as
in the paper (appendix C).
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from extras import load
from learning.features.length_predictor import Arrays, Outcome, Prediction, Prompt, clamp_prediction
from learning.predictors.cold_start import UserInputLengthPredictor
from learning.predictors.length_bins import Target, bin_upper_bound, bin_width, target_bins
from scheduling.request import COVERAGE

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
    """Asks the model in the mode `in_advance`, `only` or `tuned`; if it prints no number, predicts the input length."""

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
        """All but `source` and `mode` are for tuning; the default rate follows the model's size."""
        self.source, self.mode, self.projections = source, mode, tuple(projections)
        self.target, self.epochs, self.rate, self.batch = target, epochs, rate, batch
        self.median_ratio = self.upper_ratio = 1.0  # the ratios of median and upper quantile to the printed number
        self._weights: Arrays = {}
        self._loaded: Any = None  # a `language_model.LanguageModel`

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
            self._weights, self._loaded = {}, None
            model = self._model()
            width = bin_width(complete)
            targets = target_bins(complete, self.target, width)
            examples = [
                (model.render(prompt, QUESTIONS[self.mode]), str(bin_upper_bound(number, width)))
                for prompt, number in targets.items()
            ]
            tuning = load("learning.predictors.lora_tuning", self.name)
            tuning.tune(model, examples, epochs=self.epochs, rate=self.rate, batch=self.batch)
            self._weights = tuning.adapter_weights(model.model)
        printed = self.printed_lengths([o.prompt for o in complete])
        ratios = [o.generated_tokens / n for o, n in zip(complete, printed, strict=True) if n]
        if ratios:
            # a tuned model prints a number of tokens, which needs no ratio; other models print a number of words
            self.median_ratio = 1.0 if self.mode == "tuned" else float(np.median(ratios))
            self.upper_ratio = max(self.median_ratio, float(np.quantile(ratios, COVERAGE)))

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Return the printed number times the learned ratios of median and upper quantile."""
        fallback = UserInputLengthPredictor().predict(prompts)
        return [
            clamp_prediction(n * self.median_ratio, n * self.upper_ratio, prompt.limit_tokens) if n else otherwise
            for n, prompt, otherwise in zip(self.printed_lengths(prompts), prompts, fallback, strict=True)
        ]

    def printed_lengths(self, prompts: Sequence[Prompt]) -> list[int | None]:
        """Return the first number that the model prints for each prompt, or None (a failure in the paper)."""
        if not prompts:
            return []
        model = self._model()
        printed: list[int | None] = model.first_numbers([model.render(p, QUESTIONS[self.mode]) for p in prompts])
        return printed

    def _model(self) -> Any:
        """Return the model, loaded at its first use: the shared model, or for `tuned` a copy of it with adapters."""
        if self.mode != "tuned":
            return load("learning.predictors.language_model", self.name).shared_language_model(self.source)
        if self._loaded is None:
            tuning = load("learning.predictors.lora_tuning", self.name)
            self._loaded = tuning.load_with_adapters(self.source, self.projections, self._weights)
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
        predictor.median_ratio = float(arrays.get("median_ratio", 1.0))  # models of earlier releases lack it
        predictor.upper_ratio = float(arrays["upper_ratio"])
        prefix = "weights "
        predictor._weights = {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
        return predictor

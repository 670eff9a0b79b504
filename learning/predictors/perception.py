"""The served model's own perception of its answer's length (Sequence Scheduling 3).

The untuned model is asked for the length in advance of its answer or instead of it, and the first number that it
prints is the prediction. The tuned model was trained by LoRA to print the upper bound of the bin that the prompt's
longest answer falls into. torch is loaded when the model is first needed.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import clamp_prediction
from learning.predictors.length_bins import bin_number, bin_upper_bound
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLengthPredictor
from scheduling.request import COVERAGE

if TYPE_CHECKING:
    from learning.predictors.language_model import LanguageModel

LENGTH_ONLY = "Do not answer the request above. Say instead how many tokens your answer would have, as one number."
QUESTIONS = {
    "in_advance": "First estimate how many tokens your answer will have and write that number alone on the first "
    "line. Then answer the request.",
    "only": LENGTH_ONLY,
    "tuned": LENGTH_ONLY,
}
ANSWER_TOKENS = 8  # enough for a number and a word or two before it
NUMBER = re.compile(r"\d+")
LEARNING_RATE = 5e-5  # rate, epochs and projections are those of the paper's appendix A, for a model of 7 B parameters
EPOCHS = 3
QUERY_AND_KEY = ("q_proj", "k_proj")


class PerceptionPredictor:
    """Asks the model, `in_advance`, `only` or `tuned`; if it prints no number, the user input length is predicted."""

    name = "perception"

    def __init__(
        self,
        source: str,
        mode: str = "tuned",
        *,
        rate: float = LEARNING_RATE,
        epochs: int = EPOCHS,
        batch: int = 16,
        targets: Sequence[str] = QUERY_AND_KEY,
    ) -> None:
        self.source, self.mode, self.targets = source, mode, tuple(targets)
        self.rate, self.epochs, self.batch = rate, epochs, batch
        self.upper_ratio = 1.0  # what the printed number is multiplied by for the upper quantile
        self._weights: dict[str, npt.NDArray[Any]] = {}
        self._loaded: LanguageModel | None = None

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Tune the model if the mode is `tuned`, and learn by which factor answers exceed the printed numbers."""
        complete = [o for o in outcomes if not o.censored]
        if not complete:
            return
        if self.mode == "tuned":
            # Imported here because it loads torch, which processes with other predictors must not.
            from learning.predictors.lora_tuning import adapter_weights, tune

            self._weights = {}
            self._loaded = None
            model = self._model()
            examples = [(model.render(p, QUESTIONS[self.mode]), str(n)) for p, n in _longest(complete).items()]
            tune(model, examples, epochs=self.epochs, rate=self.rate, batch=self.batch, seed=0)
            self._weights = adapter_weights(model.model)
        printed = self.printed_lengths([o.prompt for o in complete])
        ratios = [o.generated_tokens / n for o, n in zip(complete, printed, strict=True) if n]
        self.upper_ratio = max(1.0, float(np.quantile(ratios, COVERAGE))) if ratios else 1.0

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """The printed number; the upper quantile is that times the learned ratio."""
        fallback = UserInputLengthPredictor().predict(prompts)
        return [
            clamp_prediction(n, n * self.upper_ratio, prompt.limit_tokens) if n else otherwise
            for n, prompt, otherwise in zip(self.printed_lengths(prompts), prompts, fallback, strict=True)
        ]

    def printed_lengths(self, prompts: Sequence[Prompt]) -> list[int | None]:
        """The first number that the model prints for each prompt, None where it prints none (the paper's failure)."""
        if not prompts:
            return []
        model = self._model()
        texts = [model.render(p, QUESTIONS[self.mode]) for p in prompts]
        found = [NUMBER.search(text) for text in model.generate(texts, ANSWER_TOKENS)]
        # at most a million: a longer run of digits is no length
        return [min(int(match.group()), 1 << 20) or None if match else None for match in found]

    def _model(self) -> "LanguageModel":
        """The model, with its adapters if it is tuned, loaded at its first use."""
        if self._loaded is None:
            # Imported here because it loads torch, which processes with other predictors must not.
            from learning.predictors.language_model import LanguageModel

            self._loaded = LanguageModel(self.source)
            if self.mode == "tuned":
                # Imported here for the same reason, and because peft is an optional extra.
                from learning.predictors.lora_tuning import add_adapters, load_adapter_weights

                self._loaded.model = add_adapters(self._loaded.model, self.targets)
                if self._weights:
                    load_adapter_weights(self._loaded.model, self._weights)
        return self._loaded

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored: the adapters, and the model by name."""
        settings = {
            "source": np.asarray(self.source),
            "mode": np.asarray(self.mode),
            "targets": np.array(self.targets),
        }
        weights = {f"weights {name}": values for name, values in self._weights.items()}
        return settings | weights | {"upper_ratio": np.asarray(self.upper_ratio)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "PerceptionPredictor":
        """The stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]), str(arrays["mode"]), targets=arrays["targets"].tolist())
        predictor.upper_ratio = float(arrays["upper_ratio"])
        prefix = "weights "
        predictor._weights = {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
        return predictor


def _longest(outcomes: Sequence[Outcome]) -> dict[Prompt, int]:
    """The upper bound of the bin of each prompt's longest answer: predicting too little costs more than too much."""
    longest: dict[Prompt, int] = defaultdict(int)
    for outcome in outcomes:
        longest[outcome.prompt] = max(longest[outcome.prompt], bin_upper_bound(bin_number(outcome.generated_tokens)))
    return longest

"""The served model's own perception of its answer's length (Sequence Scheduling 3).

Untuned it is asked, in advance of its answer or instead of it, and its first number is believed. Tuned, it was taught
by LoRA to print the bound of the bin that its longest answer falls into. torch is loaded once a model is needed.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import bounded
from learning.predictors.length_bins import bin_of, bound_of
from learning.predictors.length_predictor import Outcome, Prediction, Prompt
from learning.predictors.uilo import UserInputLength
from scheduling.request import COVERAGE

if TYPE_CHECKING:
    from learning.predictors.language_model import LanguageModel

INSTEAD = "Do not answer the request above. Say instead how many tokens your answer would have, as one number."
ASKS = {
    "in_advance": "First estimate how many tokens your answer will have and write that number alone on the first "
    "line. Then answer the request.",
    "only": INSTEAD,
    "tuned": INSTEAD,
}
NUMBER_TOKENS = 8
NUMBER = re.compile(r"\d+")
RATE = 5e-5  # learning rate, epochs and targets are those of the paper's appendix A, for a model of 7 B parameters
EPOCHS = 3
QUERY_AND_KEY = ("q_proj", "k_proj")


class Perception:
    """Asks the model, `in_advance`, `only` or `tuned`; where it prints no number, the user input length stands in."""

    name = "perception"

    def __init__(
        self,
        source: str,
        mode: str = "tuned",
        *,
        rate: float = RATE,
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
        """Tune the model, if that is its mode, and learn how far to trust what it says."""
        whole = [o for o in outcomes if not o.censored]
        if not whole:
            return
        if self.mode == "tuned":
            # here and not above: it loads torch, and processes with other predictors must not
            from learning.predictors.lora_tuning import adapters, tune

            self._weights = {}
            self._loaded = None
            model = self._model()
            examples = [(model.text(p, ASKS[self.mode]), str(n)) for p, n in _longest(whole).items()]
            tune(model, examples, epochs=self.epochs, rate=self.rate, batch=self.batch, seed=0)
            self._weights = adapters(model.model)
        printed = self.printed([o.prompt for o in whole])
        ratios = [o.generated_tokens / n for o, n in zip(whole, printed, strict=True) if n]
        self.upper_ratio = max(1.0, float(np.quantile(ratios, COVERAGE))) if ratios else 1.0

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """The printed number, and so much more as answers used to need."""
        stand_in = UserInputLength().predict(prompts)
        return [
            bounded(n, n * self.upper_ratio, prompt.limit_tokens) if n else otherwise
            for n, prompt, otherwise in zip(self.printed(prompts), prompts, stand_in, strict=True)
        ]

    def remaining(self, prompt: Prompt, generated: int) -> Prediction:
        """The printed number while it can still come true, then another bin."""
        before = self.predict([prompt])[0]
        if generated < before.tokens:
            return before
        more = bound_of(bin_of(generated + 1))
        return bounded(more, max(before.upper_tokens, 2 * generated), prompt.limit_tokens)

    def printed(self, prompts: Sequence[Prompt]) -> list[int | None]:
        """The first number that the model writes for each prompt, None where it writes none (a failure)."""
        if not prompts:
            return []
        model = self._model()
        texts = [model.text(p, ASKS[self.mode]) for p in prompts]
        found = [NUMBER.search(said) for said in model.say(texts, NUMBER_TOKENS)]
        return [min(int(match.group()), 1 << 20) or None if match else None for match in found]

    def _model(self) -> "LanguageModel":
        """The model, with its adapters if it is tuned, loaded at its first use."""
        if self._loaded is None:
            # here and not above: it loads torch, and processes with other predictors must not
            from learning.predictors.language_model import LanguageModel

            self._loaded = LanguageModel(self.source)
            if self.mode == "tuned":
                # here and not above: the same, and peft is an optional extra
                from learning.predictors.lora_tuning import adopt, lora

                self._loaded.model = lora(self._loaded.model, self.targets)
                if self._weights:
                    adopt(self._loaded.model, self._weights)
        return self._loaded

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored: the adapters, and the model by name."""
        described = {
            "source": np.asarray(self.source),
            "mode": np.asarray(self.mode),
            "targets": np.array(self.targets),
        }
        weights = {f"weights {name}": values for name, values in self._weights.items()}
        return described | weights | {"upper_ratio": np.asarray(self.upper_ratio)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "Perception":
        """The stored predictor; the model is loaded at its first use."""
        predictor = cls(str(arrays["source"]), str(arrays["mode"]), targets=arrays["targets"].tolist())
        predictor.upper_ratio = float(arrays["upper_ratio"])
        prefix = "weights "
        predictor._weights = {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}
        return predictor


def _longest(outcomes: Sequence[Outcome]) -> dict[Prompt, int]:
    """The bound of the bin of each prompt's longest answer: to predict too little costs more than too much."""
    longest: dict[Prompt, int] = defaultdict(int)
    for outcome in outcomes:
        longest[outcome.prompt] = max(longest[outcome.prompt], bound_of(bin_of(outcome.generated_tokens)))
    return longest

"""What a length predictor reads and says: prompts in, generation lengths in tokens out. No model lives here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is known of a request when it arrives; `input_tokens` is the paper's user input length."""

    application: str
    instruction: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted generation length: the median orders, the upper quantile reserves memory."""

    tokens: int
    upper_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A served request: what was predicted when it arrived and what came of it.

    `censored` means that the answer was cut off (limit, cancel, failure) after `generated_tokens`: its length is
    only known to be more. `at` is when it ended, seconds since the epoch.
    """

    prompt: Prompt
    generated_tokens: int
    censored: bool = False
    predicted_tokens: int | None = None
    predicted_upper_tokens: int | None = None
    at: float = 0.0


class LengthPredictor(Protocol):
    """Anything that predicts generation lengths; before its first `fit` it answers with the user input length."""

    @property
    def name(self) -> str:
        """The name that `make_predictor` knows it by."""
        ...

    def fit(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from these outcomes alone, forgetting earlier ones; censored ones are left out."""
        ...

    def predict(self, prompts: Sequence[Prompt]) -> list[Prediction]:
        """Median and upper quantile of each prompt's generation length, between 1 and its limit."""
        ...

    def remaining(self, prompt: Prompt, generated: int) -> Prediction:
        """Median and upper quantile of the whole length, given that `generated` tokens are out and it goes on."""
        ...

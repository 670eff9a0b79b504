"""Converts an answered request of the log into an outcome that predictors learn from."""

from learning.predictors.length_predictor import Outcome, Prompt
from models.training_log import FinishedRequest


def outcome_of(request: FinishedRequest) -> Outcome:
    """The request's prompt with the length that its answer had and the length that was predicted."""
    return Outcome(
        Prompt(
            request.application,
            request.instructions,
            request.input,
            request.input_tokens,
            request.prompt_tokens,
            request.limit_tokens,
        ),
        generated_tokens=request.output_tokens,
        censored=request.cut_off,
        predicted_tokens=request.predicted_tokens,
        predicted_upper_tokens=request.predicted_upper_tokens,
        at=request.at,
    )

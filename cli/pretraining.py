"""Trains a length predictor on known answers, before the service has any of its own: for `magnus train`."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Connection

from inference.remote.server_tokens import request_tokens_of
from inference.request_tokens import RequestTokens
from learning.predictors.length_predictor import LengthPredictor, Outcome, Prompt
from learning.predictors.predictor_factory import bounds_of
from learning.retraining.refit import FEWEST_HELD_OUT, FEWEST_TRAINING, Candidate, refit
from learning.store import digest, dump, load
from models import model_versions
from models.request_predictions import scoped_application
from settings import Settings
from tasks.configured_predictor import make_configured
from webapp.client_prompt import application_name

KIND = "length"  # of model versions: the length predictor's, as the trainer publishes them


class TooFewExamples(Exception):
    """Too few examples to train a predictor and to judge it on held-out ones."""

    def __init__(self, examples: int) -> None:
        self.examples = examples
        super().__init__(
            f"{examples} examples are too few: training takes {FEWEST_TRAINING} of different texts, "
            f"and about one text in five is held out to judge it, at least {FEWEST_HELD_OUT}"
        )


@dataclass(frozen=True)
class Example:
    """A request whose answer is known, as text or by its length in tokens."""

    instructions: str
    input: str
    output: str | int
    application: str | None = None


def pretrain(
    transaction: Callable[[], AbstractContextManager[Connection]],
    examples: Iterable[Example],
    settings: Settings,
    *,
    tenant: str,
    force: bool,
) -> Candidate:
    """Fit the configured predictor, and publish it unless the one in service is better; `force` publishes it anyway.

    The examples stand for requests of `tenant`: what is learned of an application holds for one tenant's. No
    transaction is open during the fit, which may take longer than the server lets one idle. Raises TooFewExamples.
    """
    key = settings.engine_key.get_secret_value() if settings.engine_key else None
    prompt_format = request_tokens_of(settings.model, key)
    outcomes = [_outcome(example, tenant, prompt_format, settings.max_output_tokens) for example in examples]
    fresh = make_configured(settings)
    with transaction() as connection:
        active = model_versions.active_version(connection, KIND)
    current: LengthPredictor | None = load(active.stored, active.sha256) if active else None
    candidate = refit(current, fresh, outcomes, since=-1.0, now=0.0, bounds=bounds_of(settings.predictor))
    if candidate is None:
        raise TooFewExamples(len(outcomes))
    if candidate.publish or force:
        stored = dump(candidate.model)
        with transaction() as connection:
            model_versions.publish(connection, KIND, stored, digest(stored), candidate.scores, candidate.data)
    return candidate


def _outcome(example: Example, tenant: str, prompt_format: RequestTokens, limit_tokens: int) -> Outcome:
    metadata = {"application": example.application} if example.application else {}
    prompt = Prompt(
        application=scoped_application(tenant, application_name(metadata, example.instructions)),
        instruction=example.instructions,
        input=example.input,
        input_tokens=prompt_format.count(example.input),
        prompt_tokens=len(prompt_format.encode_request(example.instructions, example.input, ())),
        limit_tokens=limit_tokens,
    )
    # + 1 for the end-of-sequence token, which is generated as well
    generated = example.output if isinstance(example.output, int) else prompt_format.count(example.output) + 1
    return Outcome(prompt, min(generated, limit_tokens), censored=generated > limit_tokens)

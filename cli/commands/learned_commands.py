"""`magnus train` and `magnus learned`: trains a length predictor on known answers; puts learned models into service."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from rich.table import Table
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from cli.commands.training_examples import Example, read_examples
from cli.fetching.gguf_directories import convert_once
from cli.hosting.service_access import session, settings_with, state_dir_option, transaction, with_session
from cli.output import CommandFailed, WrongSetting, json_option, print_result, printed, table
from inference.prompts.request_tokens import RequestTokens
from inference.remote.server_tokens import load_request_tokens
from learning.features.length_predictor import LengthPredictor, Outcome, Prompt
from learning.features.text_encoders import UnusableEncoder
from learning.predictors.predictor_factory import NeedsModel, bounds_of
from learning.retraining.refit import FEWEST_HELD_OUT, FEWEST_TRAINING, Candidate, refit
from learning.store import digest, dump, load
from models import model_versions
from models.request_predictions import scoped_application
from processes.configured_predictor import make_configured
from protocol.requests.client_prompt import application_name
from settings import Settings

KIND = "length"  # the kind of model version under which the trainer, too, publishes length predictors


def pretrain(
    transaction: Callable[[], AbstractContextManager[Connection]],
    examples: Iterable[Example],
    settings: Settings,
    *,
    tenant: str,
    force: bool,
) -> Candidate:
    """Fit the configured predictor, and publish it unless the version in service is better or `force` is given.

    The examples count as requests of `tenant`, because an application's lengths are learned for each tenant apart. No
    transaction is open during the fit: it may take longer than Postgres lets a transaction idle. Raises CommandFailed
    if there are too few examples to train a predictor, or too few held out to judge it.
    """
    prompt_format = load_request_tokens(settings.model, settings.engine_key_text)
    outcomes = [_outcome(example, tenant, prompt_format, settings.assumed_output_tokens) for example in examples]
    fresh = make_configured(settings)
    with transaction() as connection:
        active = model_versions.active_version(connection, KIND)
    current: LengthPredictor | None = load(active.stored, active.sha256) if active else None
    candidate = refit(current, fresh, outcomes, since=-1.0, now=0.0, bounds=bounds_of(settings.predictor))
    if candidate is None:
        raise CommandFailed(
            f"{len(outcomes)} examples are too few: training takes {FEWEST_TRAINING} of different texts, "
            f"and about one text in five is held out to judge it, at least {FEWEST_HELD_OUT}"
        )
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
    return Outcome(prompt, min(generated, limit_tokens), censored=example.cut or generated > limit_tokens)


# Scores of `magnus train`'s table, with their titles.
SHOWN_SCORES = {"rmse": "RMSE", "mae": "MAE", "tau": "Kendall's tau", "coverage": "coverage of the upper quantile"}


@click.command()
@click.option(
    "--data", "--from-log", "data", type=click.File(encoding="utf-8"), required=True, help="JSON lines; - is stdin."
)
@click.option("--tenant", default="default", show_default=True, help="Tenant whose requests are like the examples.")
@click.option("--force", is_flag=True, help="Publish even if the version in service is better on the held-out texts.")
@json_option
@state_dir_option
def train(data: IO[str], tenant: str, force: bool, as_json: bool, state_dir: Path | None) -> None:
    """Train the length predictor on a file and put it into service.

    A line has `instructions` (or `instruction`), `input`, and `output` (the answer's text) or `output_tokens`;
    `application` is optional. Three other forms are read: `messages` that end with the assistant's; a call's `request`
    and `response` as OpenAI's API and vLLM have them; the input lines and output lines of an OpenAI batch in one file.
    One text in five is held out to judge the result.
    """
    settings = settings_with(state_dir=state_dir)
    convert_once(settings.model)
    examples = list(read_examples(data))
    try:
        candidate = pretrain(partial(transaction, state_dir), examples, settings, tenant=tenant, force=force)
    except (NeedsModel, UnusableEncoder) as error:
        raise WrongSetting(str(error)) from error
    published = candidate.publish or force
    facts = {"published": published, "reason": candidate.reason, "scores": candidate.scores}
    print_result(facts, as_json, lambda _: _scores_table(candidate.scores))
    if not as_json:
        click.echo("published" if published else f"not published: {candidate.reason} (--force publishes it anyway)")
    if not published:
        raise SystemExit(1)


def _scores_table(scores: dict[str, Any]) -> Table:
    rows = ((title, *(f"{score[name]:.2f}" for score in scores.values())) for name, title in SHOWN_SCORES.items())
    return table(("on held-out texts", *scores), rows)


@click.group()
def learned() -> None:
    """List the learned models, and put an earlier version into service.

    (`magnus model` fetches language models and text encoders.)
    """


def _versions_table(versions: list[dict[str, Any]]) -> Table:
    rows = []
    for one in versions:
        scores = one["scores"].get("candidate", {})
        shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if isinstance(value, int | float))
        in_service = "yes" if one["active"] else "unreadable" if one["unreadable"] else None
        created = f"{datetime.fromtimestamp(one['created_at'], UTC):%Y-%m-%d %H:%M:%S}"
        rows.append((one["version"], in_service, created, one["data"].get("training"), shown))
    return table(("version", "in service", "created", "trained on", "scores when published"), rows)


@learned.command("list")
@printed(_versions_table)
@with_session
def list_versions(opened: Session) -> list[dict[str, Any]]:
    """Show every version and its scores on held-out outcomes."""
    return [
        {
            "version": row.version,
            "kind": row.kind,
            "active": row.active,
            "unreadable": row.unreadable,
            "created_at": row.created_at.timestamp(),
            "sha256": row.sha256.hex(),
            "scores": row.scores,
            "data": row.data,
        }
        for row in model_versions.list_all(opened)
    ]


@learned.command()
@click.argument("version")
@state_dir_option
def activate(version: str, state_dir: Path | None) -> None:
    """Put VERSION into service.

    Predictors and planner load it without a restart.
    """
    try:
        with session(state_dir) as opened:
            model_versions.activate(opened, version)
    except model_versions.UnknownVersion as error:
        raise CommandFailed(str(error)) from error
    click.echo(f"{version} is in service")

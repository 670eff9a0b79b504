"""`magnus train`: trains a length predictor on a file of requests and their answers."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from rich.table import Table

from cli.command_errors import CommandFailed
from cli.database_access import transaction
from cli.options import json_option, settings_with, state_dir_option
from cli.pretraining import Example, TooFewExamples, pretrain
from cli.terminal import make_console

# Scores of `magnus train`'s table, with their titles.
SHOWN_SCORES = {"rmse": "RMSE", "mae": "MAE", "tau": "Kendall's tau", "coverage": "coverage of the upper quantile"}


@click.command()
@click.option("--data", type=click.File(encoding="utf-8"), required=True, help="JSON lines; - reads standard input.")
@click.option("--tenant", default="default", show_default=True, help="Whose requests the examples are like.")
@click.option("--force", is_flag=True, help="Publish even if the version in service is better on the held-out texts.")
@json_option
@state_dir_option
def train(data: IO[str], tenant: str, force: bool, as_json: bool, state_dir: Path | None) -> None:
    """Pretrain the length predictor and put it into service.

    Each line has `instructions` (or `instruction`), `input`, and `output` (the answer's text) or `output_tokens`;
    `application` is optional. One text in five is held out to judge the result.
    """
    settings = settings_with(state_dir=state_dir)
    examples = list(_examples(data))
    try:
        candidate = pretrain(partial(transaction, state_dir), examples, settings, tenant=tenant, force=force)
    except TooFewExamples as error:
        raise CommandFailed(str(error)) from error
    published = candidate.publish or force
    if as_json:
        click.echo(json.dumps({"published": published, "reason": candidate.reason, "scores": candidate.scores}))
    else:
        make_console().print(_table(candidate.scores))
        click.echo("published" if published else f"not published: {candidate.reason} (--force publishes it anyway)")
    if not published:
        raise SystemExit(1)


def _examples(data: IO[str]) -> Iterator[Example]:
    for number, line in enumerate(data, 1):
        if line.strip():
            try:
                yield _example(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise click.UsageError(f"line {number} of {data.name}: {type(error).__name__}: {error}") from error


def _example(fields: dict[str, Any]) -> Example:
    output = fields["output_tokens"] if "output_tokens" in fields else fields["output"]
    instructions = fields["instructions"] if "instructions" in fields else fields["instruction"]
    texts = (instructions, fields["input"])
    if not all(isinstance(text, str) for text in texts) or not isinstance(output, str | int) or output in (0, ""):
        raise TypeError("instructions and input are texts, output a text, output_tokens a positive number")
    return Example(instructions, fields["input"], output, fields.get("application"))


def _table(scores: dict[str, Any]) -> Table:
    table = Table("on held-out texts", *scores)
    for name, title in SHOWN_SCORES.items():
        table.add_row(title, *(f"{score[name]:.2f}" for score in scores.values()))
    return table

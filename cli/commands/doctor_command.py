"""`magnus doctor`: prints what this machine lacks, and what to do about it."""

from collections.abc import Sequence
from dataclasses import asdict, astuple
from itertools import chain
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from cli.checks.doctor_checks import Finding, findings
from cli.checks.server_findings import engine_findings
from cli.checks.sign_in_findings import sign_in_findings
from cli.fetching.gguf_directories import convert_once
from cli.hosting.service_access import settings_with, state_dir_option
from cli.output import json_option, print_result, table
from extras import load


@click.command()
@json_option
@state_dir_option
@click.option("--engine", "engine_url", metavar="URL", help="Check this inference server instead, such as vLLM.")
@click.option("--model", metavar="DIR", help="Check this directory, hub id or GGUF file instead.")
def doctor(as_json: bool, state_dir: Path | None, engine_url: str | None, model: str | None) -> None:
    """Check Python, servers, ports, database, broker, model and GPUs.

    Exit status 1 if something has to be done, 2 if the model cannot be loaded.
    """
    if None not in (engine_url, model):
        raise click.UsageError("--engine and --model are about different things: give one of them")
    settings = settings_with(state_dir=state_dir, model=model)
    if engine_url is None:
        convert_once(settings.model)
    if model is not None:
        found = list(load("cli.checks.model_findings", "`magnus doctor --model`").model_findings(settings))
    else:
        found = list(
            chain(findings(settings), sign_in_findings(settings))
            if engine_url is None
            else engine_findings(settings, engine_url)
        )
    print_result([asdict(finding) for finding in found], as_json, lambda _: _findings_table(found))
    if any(finding.remedy for finding in found):
        raise SystemExit(2 if any(finding.check == "model" and finding.remedy for finding in found) else 1)


def _findings_table(found: Sequence[Finding]) -> Table:
    rows = ([cell and escape(cell) for cell in astuple(finding)] for finding in found)  # names of extras have brackets
    made = table(("check", "found", "what to do"), rows)
    for row, finding in zip(made.rows, found, strict=True):
        row.style = "red" if finding.remedy else None
    return made

"""`magnus doctor`: prints what this machine lacks, and what to do about it."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from cli.engine_checks import engine_findings
from cli.machine_checks import findings
from cli.output import json_option, make_console
from cli.service_access import settings_with, state_dir_option


@click.command()
@json_option
@state_dir_option
@click.option("--engine", "engine_url", metavar="URL", help="Say instead what this server of others can do.")
def doctor(as_json: bool, state_dir: Path | None, engine_url: str | None) -> None:
    """Check Python, servers, ports, database, broker, model and GPUs; exit status 1 if something has to be done."""
    settings = settings_with(state_dir=state_dir)
    found = list(findings(settings) if engine_url is None else engine_findings(settings, engine_url))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found]))
    else:
        table = Table("check", "found", "what to do")
        for finding in found:
            style = "red" if finding.remedy else None
            table.add_row(finding.check, finding.found, finding.remedy or "", style=style)
        make_console().print(table)
    if any(finding.remedy for finding in found):
        raise SystemExit(1)

"""`magnus batch`: runs a file of requests to a file of answers; lists, shows and cancels batches."""

import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.api_client import Json
from cli.bulk_run import BulkRun
from cli.command_errors import CommandFailed
from cli.options import client_of, json_option, service_options
from cli.terminal import make_console


@click.group()
def batch() -> None:
    """Serve a file of requests with the capacity that others leave (/v1/batches)."""


@batch.command()
@click.argument("input", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--endpoint", help="The call that every line makes; that of the first line if not given.")
@click.option("--window", default="24h", show_default=True, help="When it must be done: 30m, 24h, 7d.")
@json_option
@service_options
def run(
    input: Path,
    output: Path,
    endpoint: str | None,
    window: str,
    as_json: bool,
    url: str | None,
    api_key: str | None,
    state_dir: Path | None,
) -> None:
    """Serve the lines of INPUT and write the answers to OUTPUT, those of bad lines to OUTPUT.errors.jsonl.

    Interrupted, it goes on in the service; the same command takes it up again.
    """
    with client_of(url, api_key, state_dir) as client:
        bulk_run = BulkRun(client, input, output)
        columns = (TextColumn("{task.description:>11}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        try:
            with Progress(*columns, console=Console(stderr=True), disable=as_json) as bars:
                bar = bars.add_task("uploading", total=None)

                def show(now: Json) -> None:
                    counts = now["request_counts"]
                    done = counts["completed"] + counts["failed"]
                    bars.update(bar, description=now["status"], total=counts["total"], completed=done)

                ended = bulk_run.wait(bulk_run.start(endpoint, window), show, time.sleep)
        except KeyboardInterrupt:
            if bulk_run.batch_id:
                click.echo(
                    f"{bulk_run.batch_id} goes on; the same command takes it up again, "
                    f"`magnus batch cancel {bulk_run.batch_id}` ends it",
                    err=True,
                )
            sys.exit(130)
        bulk_run.save(ended)
    counts = ended["request_counts"]
    click.echo(json.dumps(ended) if as_json else f"{counts['completed']} of {counts['total']} answered: {output}")
    if counts["completed"] < counts["total"]:
        reasons = [f"line {one['line']}: {one['message']}" for one in (ended["errors"] or {"data": []})["data"][:3]]
        where = "; ".join(reasons) or str(bulk_run.errors_path)
        raise CommandFailed(f"the batch ended as {ended['status']}, not every line was answered: {where}")


@batch.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100), help="Most batches shown.")
@json_option
@service_options
def list_batches(limit: int, as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None) -> None:
    """Show the newest batches."""
    with client_of(url, api_key, state_dir) as client:
        _print_batches(client.batches(limit), as_json)


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@json_option
@service_options
def show(ids: tuple[str, ...], as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None) -> None:
    """Show how batches stand."""
    with client_of(url, api_key, state_dir) as client:
        _print_batches([client.batch(one) for one in ids], as_json)


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@json_option
@service_options
def cancel(ids: tuple[str, ...], as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None) -> None:
    """Cancel batches: what is answered stays."""
    with client_of(url, api_key, state_dir) as client:
        _print_batches([client.cancel_batch(one) for one in ids], as_json)


def _print_batches(batches: list[Json], as_json: bool) -> None:
    if as_json:
        for one in batches:
            click.echo(json.dumps(one))
        return
    table = Table("id", "status", "lines", "answered", "failed", "created", "due", "output file", "error file")
    for one in batches:
        counts = one["request_counts"]
        instants = (time.strftime("%Y-%m-%d %H:%M", time.localtime(one[name])) for name in ("created_at", "expires_at"))
        numbers = (str(counts[name]) for name in ("total", "completed", "failed"))
        files = (one[name] or "" for name in ("output_file_id", "error_file_id"))
        table.add_row(one["id"], one["status"], *numbers, *instants, *files)
    make_console().print(table)

"""`magnus batch`: sends a file of requests as one batch and fetches the answers; shows, pauses and changes batches."""

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.api_client import Client, Json
from cli.bulk_run import ENDED, BulkRun, dry_run, follow
from cli.hosting.service_access import with_client
from cli.option_types import Budget
from cli.output import CommandFailed, json_option, print_result, printed, table
from webapp.dashboard.charts.quantities import count, duration


@contextmanager
def progress_shown(quiet: bool, begins: str) -> Iterator[Callable[[Json], None]]:
    """Yields a function that shows a batch's state: a bar on a terminal, else a line for each change."""
    console = Console(stderr=True)
    if not quiet and not console.is_terminal:
        yield LinesOfProgress(lambda line: click.echo(line, err=True))
        return
    columns = (
        *(TextColumn("{task.description:>11}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.fields[notes]}"),
    )
    with Progress(*columns, console=console, disable=quiet) as bars:
        bar = bars.add_task(begins, total=None, notes="")

        def show(now: Json) -> None:
            total, done = now["request_counts"]["total"], _done(now)
            bars.update(bar, description=_status(now), total=total, completed=done, notes=_notes(now))

        yield show


class LinesOfProgress:
    """Says a batch's state in a line of text when its status changes, and whenever a tenth of its lines has ended."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: tuple[str, int] | None = None

    def __call__(self, now: Json) -> None:
        """Say this state, unless it equals the state that was said last."""
        total, done = now["request_counts"]["total"], _done(now)
        state = _status(now), 10 * done // max(1, total)
        if state != self._said:
            notes = _notes(now)
            self._say(f"{_status(now)} {done:,}/{total:,}{f'; {notes}' if notes else ''}")
            self._said = state


def _done(batch: Json) -> int:
    return int(batch["request_counts"]["completed"] + batch["request_counts"]["failed"])


def _notes(batch: Json) -> str:
    failed, end = batch["request_counts"]["failed"], predicted_end(batch, time.time())
    return "; ".join(filter(None, (f"{failed:,} failed" if failed else "", f"ends about {end}" if end else "")))


def predicted_end(batch: Json, now: float) -> str:
    """Return in words when a batch ends, by the service's ETA or its lines' pace, and whether that is too late."""
    counts, begun, done = batch["request_counts"], batch["in_progress_at"], _done(batch)
    left_s = batch["magnus"].get("eta_s")
    if left_s is None and done and begun and now > begun:
        left_s = (counts["total"] - done) * (now - begun) / done
    if left_s is None or _status(batch) in (*ENDED, "paused"):
        return ""
    late = ", too late" if now + left_s > batch["expires_at"] else ""
    return f"{time.strftime('%a %H:%M:%S', time.localtime(now + left_s))}{late}"


def _status(batch: Json) -> str:
    paused = batch["magnus"].get("paused_for") or batch["magnus"]["paused_at"]
    return "paused" if paused and batch["status"] not in ENDED else str(batch["status"])


@click.group()
def batch() -> None:
    """Send a file of requests as one batch, and fetch the answers.

    Batches (/v1/batches) are served with the capacity that other requests leave.
    """


@batch.command()
@click.argument("input", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--endpoint", help="The call that every line makes; by default that of the first line.")
@click.option("--window", default="24h", show_default=True, help="When it must be done: 30m, 24h, 7d.")
@click.option("--dry-run", "dry", is_flag=True, help="Check some lines and estimate all; nothing runs or is kept.")
@click.option("--budget", type=Budget(), help="What the lines may use before those that wait pause.")
@json_option
@with_client
def run(
    client: Client,
    input: Path,
    output: Path | None,
    endpoint: str | None,
    window: str,
    dry: bool,
    budget: Json | None,
    as_json: bool,
) -> None:
    """Serve the lines of INPUT and write their answers to OUTPUT.

    The errors of lines that have no answer go to OUTPUT.errors.jsonl. If this command is interrupted, the service goes
    on with the batch; the same command continues it. --dry-run needs no OUTPUT.
    """
    magnus = {} if budget is None else {"budget": budget}
    if dry:
        _try(client, input, endpoint, window, as_json, **magnus)
    elif output is None:
        raise click.UsageError("Missing argument 'OUTPUT'.")
    else:
        _serve(client, input, output, endpoint, window, as_json, **magnus)


def _try(client: Client, input: Path, endpoint: str | None, window: str, as_json: bool, **magnus: Any) -> None:
    batch = dry_run(client, input, endpoint, window, **magnus)
    print_result(batch, as_json, _estimate)
    if bad := batch["request_counts"]["failed"]:
        checked = batch["magnus"]["checked_lines"]
        raise CommandFailed(f"{bad} of the {checked} checked lines would be refused: {_reasons(batch)}")


def _serve(
    client: Client, input: Path, output: Path, endpoint: str | None, window: str, as_json: bool, **magnus: Any
) -> None:
    bulk_run = BulkRun(client, input, output)
    try:
        with progress_shown(as_json, "uploading") as shown:
            ended = follow(client, bulk_run.start(endpoint, window, **magnus), shown, time.sleep)
    except KeyboardInterrupt:
        if sent := bulk_run.state.batch:
            said = f"{sent} goes on; the same command takes it up again, `magnus batch cancel {sent}` ends it"
            click.echo(said, err=True)
        sys.exit(130)
    bulk_run.save(ended)
    counts = ended["request_counts"]
    print_result(ended, as_json, lambda _: f"{counts['completed']} of {counts['total']} answered: {output}")
    if counts["completed"] < counts["total"]:
        where = _reasons(ended) or str(bulk_run.errors_path)
        raise CommandFailed(f"the batch ended as {ended['status']}, not every line was answered: {where}")


def _reasons(batch: Json) -> str:
    errors = (batch["errors"] or {"data": []})["data"][:3]
    return "; ".join(f"line {one['line']}: {one['message']}" for one in errors)


def _estimate(batch: Json) -> Table:
    """Returns a table of what a dry run estimates for a batch."""
    magnus, cost_s = batch["magnus"], batch["magnus"]["left_gpu_s"]
    times = [duration(magnus[name]) for name in ("eta_s", "eta_low_s", "eta_high_s")]
    end = f"in {times[0]}; nine of ten end in {times[1]} to {times[2]}"
    rows = [
        ("lines", count(batch["request_counts"]["total"])),
        ("checked", count(magnus["checked_lines"])),
        ("predicted tokens", count(magnus["predicted_tokens"])),
        ("predicted cost", "not known" if cost_s is None else f"{cost_s:,.1f} s of a worker"),
        ("predicted end", end if magnus["eta_s"] is not None else "not known before a worker has served requests"),
        *(("warning", warning) for warning in magnus["warnings"]),
    ]
    return table(("fact", "estimate"), rows, show_header=False)


def for_batches(command: Callable[..., list[Json]]) -> Callable[..., Any]:
    """Adds the ids of batches as an argument, and prints the batches that the command returns."""
    return click.argument("ids", nargs=-1, required=True)(printed(_batches, lines=True)(with_client(command)))


def _batches(batches: list[Json]) -> Table:
    columns = ("id", "status", "tier", "lines", "answered", "failed", "created", "due", "predicted end")
    rows = []
    for one in batches:
        counts = (f"{one['request_counts'][name]:,}" for name in ("total", "completed", "failed"))
        instants = (time.strftime("%Y-%m-%d %H:%M", time.localtime(one[name])) for name in ("created_at", "expires_at"))
        end = predicted_end(one, time.time())
        rows.append((one["id"], _status(one), one["magnus"]["service_tier"], *counts, *instants, end))
    return table(columns, rows)


@batch.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100), help="Most batches shown.")
@printed(_batches, lines=True)
@with_client
def list_batches(client: Client, limit: int) -> list[Json]:
    """Show the newest batches."""
    return list(client.call("GET", "batches", params={"limit": limit})["data"])


@batch.command()
@for_batches
def show(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Show the status of batches."""
    return [client.batch(one) for one in ids]


@batch.command()
@click.argument("id")
@json_option
@with_client
def watch(client: Client, id: str, as_json: bool) -> None:
    """Show a batch's progress until it has ended.

    Its predicted end is shown, too. If the service restarts, the command waits for it.
    """
    with progress_shown(as_json, "") as shown:
        ended = follow(client, client.batch(id), shown, time.sleep)
    print_result([ended], as_json, _batches, lines=True)


@batch.command()
@click.argument("id")
@click.argument("output", type=click.File("wb"), default="-")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    default="jsonl",
    show_default=True,
    help="Format of OUTPUT; parquet needs pyarrow.",
)
@with_client
def results(client: Client, id: str, output: BinaryIO, kind: str) -> None:
    """Write the lines that have ended by now to OUTPUT.

    Failed lines are included; the order is that of the input.
    """
    for piece in client.results(id, kind):
        output.write(piece)


@batch.command()
@for_batches
def cancel(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Cancel batches; the answers that they have are kept."""
    return [client.act_on_batch(one, "cancel") for one in ids]


@batch.command()
@for_batches
def pause(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Stop serving the waiting lines of batches.

    Lines that run are still answered, and the completion windows go on.
    """
    return [client.act_on_batch(one, "pause") for one in ids]


@batch.command()
@for_batches
def resume(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Let the lines of paused batches be served again."""
    return [client.act_on_batch(one, "resume") for one in ids]


@batch.command()
@for_batches
def retry(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Send the unanswered lines of ended batches again, as new batches.

    Lines that would be refused again are left out.
    """
    return [client.call("POST", "batches", one, "retry", headers={"Idempotency-Key": uuid.uuid4().hex}) for one in ids]


@batch.command()
@click.option("--window", help="When they must be done, counted from their creation: 30m, 24h, 7d.")
@click.option(
    "--tier",
    type=click.Choice(["flex", "off_peak", "default"]),
    help="Whether lines wait for capacity that others leave.",
)
@click.option("--budget", type=Budget(), help="What the lines of each may use before those that wait pause.")
@for_batches
def change(
    client: Client, ids: tuple[str, ...], window: str | None, tier: str | None, budget: Json | None
) -> list[Json]:
    """Give batches another completion window, service tier or budget."""
    if not (window or tier or budget):
        raise click.UsageError("give --window, --tier or --budget")
    asked = {"completion_window": window, "service_tier": tier, "budget": budget}
    changes = {name: value for name, value in asked.items() if value}
    return [client.call("POST", "batches", one, json=changes) for one in ids]

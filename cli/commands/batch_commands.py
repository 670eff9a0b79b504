"""A run of `magnus batch run`: a file beside its output says what it has done, so that it can be taken up again."""

import hashlib
import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.api_client import Client, Json
from cli.output import CommandFailed, make_console
from cli.service_access import client_of, json_option, service_options

ENDED = ("failed", "completed", "expired", "cancelled")
POLL_S = 1.0  # the service counts a batch's lines once a second at most


@dataclass
class RunState:
    """What a run has done: its key makes that a creation whose answer was lost is not repeated."""

    input_sha256: str
    url: str
    key: str
    file: str | None = None
    batch: str | None = None

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The state that an interrupted run left; None if there is none."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise CommandFailed(f"{path} cannot be read: remove it to start anew") from error

    def write(self, path: Path) -> None:
        """Keep it; the file is replaced as a whole."""
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)


class BulkRun:
    """From a file of lines to a file of answers, however often it is interrupted."""

    def __init__(self, client: Client, input: Path, output: Path) -> None:
        self._client, self._input, self._output = client, input, output
        self.state_path = beside(output, "state")
        self.errors_path = beside(output, "errors.jsonl")
        self._state = self._taken_up()

    @property
    def batch_id(self) -> str | None:
        """The batch, once it is created."""
        return self._state.batch

    def start(self, endpoint: str | None, window: str) -> Json:
        """Upload and create, as far as an earlier run has not; returns the batch."""
        state = self._state
        if state.batch is not None:
            return self._client.batch(state.batch)
        state.write(self.state_path)
        if state.file is None:
            state.file = str(self._client.upload(self._input)["id"])
            state.write(self.state_path)
        body = {
            "input_file_id": state.file,
            "endpoint": endpoint or first_url(self._input),
            "completion_window": window,
        }
        batch = self._client.create_batch(body, state.key)
        state.batch = str(batch["id"])
        state.write(self.state_path)
        return batch

    def wait(self, batch: Json, show: Callable[[Json], None], pause: Callable[[float], object]) -> Json:
        """Poll until the batch has ended."""
        show(batch)
        while batch["status"] not in ENDED:
            pause(POLL_S)
            batch = self._client.batch(batch["id"])
            show(batch)
        return batch

    def save(self, batch: Json) -> None:
        """Write the answers, and the errors if there are any, and forget the run."""
        for file_id, path in ((batch["output_file_id"], self._output), (batch["error_file_id"], self.errors_path)):
            part = beside(path, "part")
            with part.open("wb") as file:
                for piece in self._client.content(file_id) if file_id else ():
                    file.write(piece)
            if file_id or path == self._output:
                part.replace(path)
            else:
                part.unlink()
        self.state_path.unlink(missing_ok=True)

    def _taken_up(self) -> RunState:
        digest = sha256_of(self._input)
        state = RunState.read(self.state_path)
        if state is None:
            return RunState(digest, self._client.url, uuid.uuid4().hex)
        if (state.input_sha256, state.url) != (digest, self._client.url):
            raise CommandFailed(
                f"{self.state_path} belongs to a run of another file, or on {state.url}: remove it to start anew"
            )
        return state


def beside(path: Path, ending: str) -> Path:
    """A file of the same name with one more ending."""
    return path.with_name(f"{path.name}.{ending}")


def sha256_of(path: Path) -> str:
    """The digest of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_url(path: Path) -> str:
    """The call that the first line makes; raises CommandFailed for a line that names none."""
    with path.open("rb") as file:
        line = next((line for line in file if line.strip()), b"")
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"the first line of {path} has no `url`: give --endpoint") from error


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

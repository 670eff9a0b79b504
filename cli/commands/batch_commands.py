"""`magnus batch`: sends a file of requests as one batch and fetches the answers; shows, pauses and changes batches.

A file beside the output holds what a run has done, so that the same command continues an interrupted run.
"""

import hashlib
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.api_client import RETRIED_STATUSES, Client, Json, ServiceError
from cli.output import CommandFailed, Unreachable, json_option, print_result, printed, table
from cli.service_access import with_client

ENDED = ("failed", "completed", "expired", "cancelled")
POLL_S = 1.0  # the service counts a batch's lines once a second at most


@dataclass
class RunState:
    """The progress of a run. With the idempotency `key` the batch is created once, even if an answer was lost."""

    input_sha256: str
    url: str
    key: str
    file: str | None = None
    batch: str | None = None

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the state that an interrupted run left, or None."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise CommandFailed(f"{path} cannot be read: remove it to start anew") from error

    def write(self, path: Path) -> None:
        """Write the state; the file is replaced as a whole."""
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)


class BulkRun:
    """Turns a file of request lines into a file of answers, in as many runs of the command as it takes."""

    def __init__(self, client: Client, input: Path, output: Path) -> None:
        self._client, self._input, self._output = client, input, output
        self.state_path = beside(output, "state")
        self.errors_path = beside(output, "errors.jsonl")
        self._state = self._read_state()

    @property
    def batch_id(self) -> str | None:
        """The id of the batch; None before it is created."""
        return self._state.batch

    def start(self, endpoint: str | None, window: str) -> Json:
        """Upload the file and create the batch, unless an earlier run did; return the batch."""
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
        """Poll until the batch has ended, and return it; `show` gets each state."""
        return follow(self._client, batch, show, pause)

    def save(self, batch: Json) -> None:
        """Write the answers, and the errors if there are any, and remove the run's state file."""
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

    def _read_state(self) -> RunState:
        digest = sha256_of(self._input)
        state = RunState.read(self.state_path)
        if state is None:
            return RunState(digest, self._client.url, uuid.uuid4().hex)
        if (state.input_sha256, state.url) != (digest, self._client.url):
            raise CommandFailed(
                f"{self.state_path} belongs to a run of another file, or on {state.url}: remove it to start anew"
            )
        return state


def follow(client: Client, batch: Json, show: Callable[[Json], None], pause: Callable[[float], object]) -> Json:
    """Poll until the batch has ended, and return it; `show` gets each state, and that the service does not answer."""
    show(batch)
    while batch["status"] not in ENDED:
        pause(POLL_S)
        try:
            batch = client.batch(batch["id"])
            show(batch)
        except (Unreachable, ServiceError) as error:
            if isinstance(error, ServiceError) and error.status not in RETRIED_STATUSES:
                raise
            show(batch | {"status": "no answer"})
    return batch


def beside(path: Path, ending: str) -> Path:
    """Return the path with this ending appended."""
    return path.with_name(f"{path.name}.{ending}")


def sha256_of(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_url(path: Path) -> str:
    """Return the `url` of the first line; raise CommandFailed if it has none."""
    with path.open("rb") as file:
        line = next((line for line in file if line.strip()), b"")
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"the first line of {path} has no `url`: give --endpoint") from error


@contextmanager
def progress_shown(quiet: bool) -> Iterator[Callable[[Json], None]]:
    """Gives a function that shows a batch's state as a bar with its predicted end."""
    columns = (
        *(TextColumn("{task.description:>11}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.fields[end]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bars:
        bar = bars.add_task("uploading", total=None, end="")

        def show(now: Json) -> None:
            counts = now["request_counts"]
            done = counts["completed"] + counts["failed"]
            end = predicted_end(now, time.time())
            bars.update(bar, description=_status(now), total=counts["total"], completed=done, end=end)

        yield show


def predicted_end(batch: Json, now: float) -> str:
    """Return when a batch will end: as the service predicts it, or at the pace of its lines until `now`."""
    counts, begun = batch["request_counts"], batch["in_progress_at"]
    done = counts["completed"] + counts["failed"]
    left_s = batch["magnus"].get("eta_s")
    if left_s is None and done and begun and now > begun:
        left_s = (counts["total"] - done) * (now - begun) / done
    if left_s is None or batch["status"] in ENDED or batch["magnus"]["paused_at"]:
        return ""
    late = " (its window ends before)" if now + left_s > batch["expires_at"] else ""
    return f"ends about {time.strftime('%a %H:%M:%S', time.localtime(now + left_s))}{late}"


def _status(batch: Json) -> str:
    return "paused" if batch["magnus"]["paused_at"] and batch["status"] not in ENDED else str(batch["status"])


@click.group()
def batch() -> None:
    """Send a file of requests as one batch, and fetch the answers.

    Batches (/v1/batches) are served with the capacity that other requests leave.
    """


@batch.command()
@click.argument("input", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--endpoint", help="The call that every line makes; that of the first line if not given.")
@click.option("--window", default="24h", show_default=True, help="When it must be done: 30m, 24h, 7d.")
@json_option
@with_client
def run(client: Client, input: Path, output: Path, endpoint: str | None, window: str, as_json: bool) -> None:
    """Serve the lines of INPUT and write their answers to OUTPUT.

    The errors of lines that have no answer go to OUTPUT.errors.jsonl. If this command is interrupted, the service goes
    on with the batch; the same command continues it.
    """
    bulk_run = BulkRun(client, input, output)
    try:
        with progress_shown(as_json) as shown:
            ended = bulk_run.wait(bulk_run.start(endpoint, window), shown, time.sleep)
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
    print_result(ended, as_json, lambda _: f"{counts['completed']} of {counts['total']} answered: {output}")
    if counts["completed"] < counts["total"]:
        reasons = [f"line {one['line']}: {one['message']}" for one in (ended["errors"] or {"data": []})["data"][:3]]
        where = "; ".join(reasons) or str(bulk_run.errors_path)
        raise CommandFailed(f"the batch ended as {ended['status']}, not every line was answered: {where}")


def _batches(batches: list[Json]) -> Table:
    columns = ("id", "status", "lines", "answered", "failed", "created", "due", "output file", "error file")
    rows = []
    for one in batches:
        counts = (one["request_counts"][name] for name in ("total", "completed", "failed"))
        instants = (time.strftime("%Y-%m-%d %H:%M", time.localtime(one[name])) for name in ("created_at", "expires_at"))
        rows.append((one["id"], _status(one), *counts, *instants, one["output_file_id"], one["error_file_id"]))
    return table(columns, rows)


@batch.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 100), help="Most batches shown.")
@printed(_batches, lines=True)
@with_client
def list_batches(client: Client, limit: int) -> list[Json]:
    """Show the newest batches."""
    return client.batches(limit)


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@printed(_batches, lines=True)
@with_client
def show(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Show the status of batches."""
    return [client.batch(one) for one in ids]


@batch.command()
@click.argument("id")
@json_option
@with_client
def watch(client: Client, id: str, as_json: bool) -> None:
    """Show a batch's progress until it has ended.

    With its predicted end; a restart of the service is waited for.
    """
    with progress_shown(as_json) as shown:
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
    help="Of OUTPUT; Parquet needs pyarrow.",
)
@with_client
def results(client: Client, id: str, output: BinaryIO, kind: str) -> None:
    """Write the lines that have ended by now to OUTPUT.

    Answered or not, in the order of the input.
    """
    for piece in client.results(id, kind):
        output.write(piece)


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@printed(_batches, lines=True)
@with_client
def cancel(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Cancel batches; the answers that they have are kept."""
    return [client.act_on_batch(one, "cancel") for one in ids]


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@printed(_batches, lines=True)
@with_client
def pause(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Stop serving the waiting lines of batches.

    Lines that run are still answered, and the completion windows go on.
    """
    return [client.act_on_batch(one, "pause") for one in ids]


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@printed(_batches, lines=True)
@with_client
def resume(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Let the lines of paused batches be served again."""
    return [client.act_on_batch(one, "resume") for one in ids]


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@printed(_batches, lines=True)
@with_client
def retry(client: Client, ids: tuple[str, ...]) -> list[Json]:
    """Send unanswered lines again as a new batch.

    The lines are those of an ended batch without an answer.
    """
    return [client.retry_batch(one) for one in ids]


@batch.command()
@click.argument("ids", nargs=-1, required=True)
@click.option("--window", help="When they must be done, counted from their creation: 30m, 24h, 7d.")
@click.option(
    "--tier", type=click.Choice(["flex", "default"]), help="Whether lines wait for capacity that others leave."
)
@printed(_batches, lines=True)
@with_client
def change(client: Client, ids: tuple[str, ...], window: str | None, tier: str | None) -> list[Json]:
    """Give batches another completion window or service tier."""
    asked = {"completion_window": window, "service_tier": tier}
    return [client.change_batch(one, {name: value for name, value in asked.items() if value}) for one in ids]

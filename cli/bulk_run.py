"""A file of request lines as one batch: uploaded, created, followed to its end, and its answers saved.

A file beside the output holds what a run has done, so that the same command continues an interrupted run.
"""

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from cli.api_client import RETRIED_STATUSES, Client, Json, ServiceError
from cli.output import CommandFailed, Unreachable

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
        self.state = self._read_state()

    def start(self, endpoint: str | None, window: str, **magnus: Any) -> Json:
        """Upload the file and create the batch, unless an earlier run did; return the batch."""
        state = self.state
        if state.batch is not None:
            return self._client.batch(state.batch)
        endpoint = endpoint or first_url(self._input)
        state.write(self.state_path)
        if state.file is None:
            state.file = str(self._client.upload(self._input)["id"])
            state.write(self.state_path)
        batch = self._client.create_batch(_asked(state.file, endpoint, window, magnus), state.key)
        state.batch = str(batch["id"])
        state.write(self.state_path)
        return batch

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
        with self._input.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        state = RunState.read(self.state_path)
        if state is None:
            return RunState(digest, self._client.url, uuid.uuid4().hex)
        if (state.input_sha256, state.url) != (digest, self._client.url):
            raise CommandFailed(
                f"{self.state_path} belongs to a run of another file, or on {state.url}: remove it to start anew"
            )
        return state


def dry_run(client: Client, input: Path, endpoint: str | None, window: str, **magnus: Any) -> Json:
    """Return the batch that the file would become; the service keeps neither file nor batch."""
    endpoint = endpoint or first_url(input)
    file = str(client.upload(input)["id"])
    try:
        return client.create_batch(_asked(file, endpoint, window, magnus | {"dry_run": True}))
    finally:
        client.call("DELETE", "files", file)


def follow(client: Client, batch: Json, show: Callable[[Json], None], pause: Callable[[float], object]) -> Json:
    """Poll until the batch has ended, and return it; `show` gets each state, or `no answer` as the status."""
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


def _asked(file: str, endpoint: str, window: str, magnus: Json) -> Json:
    return {"input_file_id": file, "endpoint": endpoint, "completion_window": window, "magnus": magnus}


def beside(path: Path, ending: str) -> Path:
    """Return the path with this ending appended."""
    return path.with_name(f"{path.name}.{ending}")


def first_url(path: Path) -> str:
    """Return the `url` of the first line; raise CommandFailed if it has none."""
    with path.open("rb") as file:
        line = next((line for line in file if line.strip()), b"")
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"the first line of {path} has no `url`: give --endpoint") from error

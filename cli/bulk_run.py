"""A run of `magnus batch run`: a file beside its output says what it has done, so that it can be taken up again."""

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from cli.api_client import Client, Json
from cli.command_errors import CommandFailed

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

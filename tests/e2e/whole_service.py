"""A whole service under `magnus up`, started and stopped as people do it."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from cli.hosting.process_commands import BIN

MAGNUS = str(BIN / "magnus")


class Up:
    """A running `magnus up` with its state directory; what it says on standard error lies beside that directory."""

    def __init__(self, state_dir: Path, *options: str, **environment: str) -> None:
        self.state_dir = state_dir
        command = [MAGNUS, "up", "--json", "--state-dir", str(state_dir), "--port", "0", "--flower-port", "0"]
        self._command = [*command, *options]
        self._environment = {**os.environ, **environment}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it says where it answers."""
        with (self.state_dir.parent / "errors").open("ab") as errors:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.facts: dict[str, str] = json.loads(line)

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.facts["url"]

    @property
    def key(self) -> str:
        """The API key of its state directory."""
        return (self.state_dir / "api-key").read_text().strip()

    def secrets(self) -> dict[str, str]:
        """What only its user may read."""
        content: dict[str, str] = json.loads(Path(self.facts["service_file"]).read_text())
        return content

    def listed(self) -> dict[str, int]:
        """The process ids of its processes, by name."""
        return {entry["name"]: entry["pid"] for entry in json.loads((self.state_dir / "processes.json").read_text())}

    def pid(self, name: str) -> int:
        """The process id of the service's process of this name."""
        return self.listed()[name]

    def family(self) -> list[psutil.Process]:
        """The process of `magnus up` and all its descendants."""
        itself = psutil.Process(self.process.pid)
        return [itself, *itself.children(recursive=True)]

    def errors(self) -> str:
        """What it has said on standard error."""
        return (self.state_dir.parent / "errors").read_text()

    def end(self, number: signal.Signals) -> int:
        """Send it this signal and wait for its end; returns its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@contextmanager
def running_up(*options: str, **environment: str) -> Iterator[Up]:
    """Start it with these options and settings, wait until it answers, stop it at the end: no process may be left."""
    with tempfile.TemporaryDirectory(prefix="magnus-e2e-") as directory:
        up = Up(Path(directory) / "state", *options, **environment)
        try:
            yield up
        finally:
            everyone = up.family()
            status = up.end(signal.SIGTERM)
        assert status == 0, up.errors()
        _, left = psutil.wait_procs(everyone, timeout=10)
        assert left == []


def eventually(condition: Callable[[], Any], within_s: float = 120.0) -> None:
    """Return once the condition holds; fail when that takes too long."""
    pause = Event()
    for _ in range(round(within_s / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    pytest.fail(f"not true within {within_s} s")

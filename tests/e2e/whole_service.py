"""A whole service under `magnus up`, started and stopped as people do it."""

import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cli.hosting.process_commands import BIN

MAGNUS = str(BIN / "magnus")


@dataclass(frozen=True)
class Up:
    """A running `magnus up`: where it answers, with which key, and its state directory."""

    url: str
    key: str
    state_dir: Path

    def pid(self, name: str) -> int:
        """The process id of the service's process of this name."""
        entries = json.loads((self.state_dir / "processes.json").read_text())
        (pid,) = (entry["pid"] for entry in entries if entry["name"] == name)
        return int(pid)


@contextmanager
def running_up(*options: str) -> Iterator[Up]:
    """Start it with these options, wait until it says where it answers, stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="magnus-e2e-") as directory:
        state_dir, errors = Path(directory) / "state", Path(directory) / "errors"
        command = [MAGNUS, "up", "--json", "--state-dir", str(state_dir), "--port", "0", "--flower-port", "0"]
        command += options
        with (
            errors.open("wb") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
        ):
            assert process.stdout is not None
            facts = process.stdout.readline()
            assert facts, errors.read_text()
            try:
                yield Up(json.loads(facts)["url"], (state_dir / "api-key").read_text().strip(), state_dir)
            finally:
                process.send_signal(signal.SIGTERM)
        assert process.returncode == 0, errors.read_text()


def eventually(condition: Callable[[], Any], within_s: float = 120.0) -> None:
    """Return once the condition holds; fail when that takes too long."""
    pause = Event()
    for _ in range(round(within_s / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    pytest.fail(f"not true within {within_s} s")

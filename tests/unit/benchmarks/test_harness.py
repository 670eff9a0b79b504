"""Every benchmark writes its figures with their origin, and reads its options and prints its tables in one way."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.harness import Results, cell, origin, percentile

ORIGIN = {"commit": "abc1234", "date": "2026-11-26", "machine": "2 cores", "command": "python -m benchmarks.x"}


def test_figures_are_written_with_their_origin_and_read_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "made" / "figures.json", ORIGIN)
    results.write({"seconds": 1.5})
    assert json.loads((tmp_path / "made" / "figures.json").read_text()) == {**ORIGIN, "figures": {"seconds": 1.5}}
    assert results.earlier() == {"seconds": 1.5}


def test_in_a_folder_each_run_has_a_file_named_by_date_and_commit(tmp_path: Path) -> None:
    first = Results.at(tmp_path / "live")
    first.write([1])
    Results.at(tmp_path / "live").write([2])
    name = f"{first.origin['date']}_{first.origin['commit']}"
    assert {path.name for path in (tmp_path / "live").iterdir()} == {f"{name}.json", f"{name}_2.json"}


def test_the_command_is_kept_without_keys_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--api-key", "secret", "--database-url=postgres://u:p@h/d", "--rate", "2"])
    command = origin()["command"]
    assert "secret" not in command
    assert "postgres" not in command
    assert command.endswith("--rate 2")


def test_the_command_is_kept_without_the_folders_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--data", "/home/me/data", "--json=/tmp/a/f.json", "--url", "http://h/v1", "docs/results/f.json"]
    monkeypatch.setattr(sys, "argv", ["x", *arguments])
    assert origin()["command"].endswith("--data data --json=f.json --url http://h/v1 docs/results/f.json")


@pytest.mark.parametrize(
    ("column", "shown"),
    [("name", "fusion"), ("times.mean:.1f", "2.5"), ("share:.0%", "50%"), ("absent", "–"), ("times.p99", "–")],
)
def test_a_cell_shows_the_value_at_its_path_in_its_format(column: str, shown: str) -> None:
    assert cell({"name": "fusion", "times": {"mean": 2.46}, "share": 0.5}, column) == shown


@pytest.mark.parametrize(
    ("values", "share", "expected"), [([], 0.5, None), ([3.0], 0.99, 3.0), ([1.0, 2.0], 0.5, 1.5), ([2, 1, 4, 3], 1, 4)]
)
def test_a_percentile_is_interpolated(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected

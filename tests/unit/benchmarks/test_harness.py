"""Every benchmark writes its figures with their origin, and reads its options and prints its tables in one way."""

import json
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.harness import Results, cell, json_option, origin, percentile, spread, until
from cli.option_types import CommaSeparated

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


def test_without_a_path_nothing_is_written() -> None:
    results = Results(None, ORIGIN)
    results.write([1])
    assert results.earlier() is None


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


def test_a_command_with_the_option_gets_its_results(tmp_path: Path) -> None:
    @click.command()
    @json_option
    @click.option("--rates", type=CommaSeparated(float), default="1,2")
    def main(rates: list[float], results: Results) -> None:
        results.write(rates)

    run = CliRunner().invoke(main, ["--json", str(tmp_path / "f.json"), "--rates", "0.5,4"])
    assert run.exit_code == 0
    assert json.loads((tmp_path / "f.json").read_text())["figures"] == [0.5, 4.0]


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


def test_a_spread_of_nothing_has_no_figures() -> None:
    assert spread([]) == dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    assert spread([1.0, 2.0])["max"] == 2.0


def test_waiting_ends_with_the_condition_or_in_time() -> None:
    looks = iter([False, True])
    assert until(lambda: next(looks), seconds=5.0, every_s=0.0)
    assert not until(lambda: False, seconds=0.0, every_s=0.0)

"""A comparison that was stopped goes on with the runs that are missing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Results
from benchmarks.live.run_records import RunRecords, RunTerms

ORIGIN = {"commit": "abc1234"}
TERMS = RunTerms(
    "vs", 25.0, 0, 450, 0, 0.0, 0.0, "toy", "bundled-1x", 3, "40MiB", 1024, 1024, "v100", 0.0, "forest", None, 0
)


def records(file: Path, minutes: float | None = None) -> RunRecords:
    return RunRecords(Results(file, ORIGIN), resume=True, minutes=minutes)


def test_a_run_that_the_file_has_is_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    assert records(file).run(TERMS, lambda: {"requests_per_s": 4.7}) is not None
    again = records(file)
    assert again.run(TERMS, lambda: {"requests_per_s": 5.0}) is None
    assert again.run(replace(TERMS, repeat=1), lambda: {"requests_per_s": 5.0}) is not None
    assert [run["requests_per_s"] for run in again.runs] == [4.7, 5.0]


def test_other_terms_are_another_run(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    records(file).run(TERMS, lambda: {})
    assert records(file).run(replace(TERMS, headroom=3 / 7), lambda: {}) is not None


def test_a_run_that_failed_is_recorded_and_measured_again_later(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"

    def fail() -> dict[str, Any]:
        raise RuntimeError("the worker has ended")

    failed = records(file)
    failed.run(TERMS, fail)
    assert failed.runs[0]["error"] == "RuntimeError: the worker has ended"
    later = records(file)
    assert later.run(TERMS, lambda: {"requests_per_s": 4.7}) is not None
    assert len(later.runs) == 1


def test_no_run_begins_once_the_time_is_up(tmp_path: Path) -> None:
    late = records(tmp_path / "runs.json", minutes=0.0)
    assert late.time_is_up
    assert late.run(TERMS, lambda: {}) is None


def test_without_resume_a_file_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    records(file).run(TERMS, lambda: {})
    assert RunRecords(Results(file, ORIGIN), resume=False, minutes=None).runs == []


def test_a_variant_keeps_its_name_whatever_the_service_calls_its_policy(tmp_path: Path) -> None:
    oracle = replace(TERMS, policy="oracle")
    record = records(tmp_path / "runs.json").run(oracle, lambda: {"policy": "fusion"})
    assert record is not None
    assert record["policy"] == "oracle"
    assert records(tmp_path / "runs.json").run(oracle, lambda: {}) is None

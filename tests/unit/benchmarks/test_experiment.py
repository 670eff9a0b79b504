"""Systems take turns at every part of a workload, and a table has the medians of their repeats."""

from pathlib import Path

import pytest

from benchmarks.experiment import Experiment, medians, of_system, times
from benchmarks.harness import Results


def test_every_system_serves_once_before_any_serves_again_and_the_order_turns_round() -> None:
    experiment = Experiment({"x": 1, "y": 2}, {"a": 10, "b": 20}, lambda system, work: {"sum": system + work})
    runs = [(run["repeat"], run["workload"], run["system"], run["sum"]) for run in experiment.runs(2)]
    assert runs[:4] == [(0, "x", "a", 11), (0, "x", "b", 21), (0, "y", "a", 12), (0, "y", "b", 22)]
    assert [run[2] for run in runs[4:]] == ["b", "a", "b", "a"]


def test_what_has_been_measured_is_written_after_each_run(tmp_path: Path) -> None:
    results = Results(tmp_path / "figures.json", {})

    def measure(system: int, _: int) -> dict[str, int]:
        if system == 2:
            raise ValueError("broken")
        return {"seconds": system}

    with pytest.raises(ValueError, match="broken"):
        Experiment({"": 0}, {"a": 1, "b": 2}, measure).rows(results)
    assert [row["system"] for row in results.earlier()] == ["a"]


def test_a_ratio_is_the_median_of_those_within_a_repeat() -> None:
    seconds = iter([1.0, 2.0, 8.0, 2.0, 1.0, 3.0])  # a, b; then b, a; then a, b
    rows = list(Experiment({"": 0}, {"a": 0, "b": 0}, lambda *_: {"seconds": next(seconds)}).runs(3))
    assert of_system(rows, "a", "seconds") == [1.0, 2.0, 1.0]
    assert times(rows, "a", "b") == 3.0  # of 2, 4 and 3
    assert times(rows, "a", "vLLM") is None


def test_medians_are_those_of_the_runs_that_have_the_figure() -> None:
    rows = [
        {"policy": "vs", "mean": 4.0, "response_s": {"p99": 9.0}, "name": "one"},
        {"policy": "vs", "mean": 2.0, "response_s": {"p99": 7.0}, "gap": None},
        {"policy": "vs", "mean": 3.0, "response_s": {}, "gap": 5.0},
    ]
    assert medians(rows, ("policy",)) == [
        {"policy": "vs", "mean": 3.0, "response_s": {"p99": 8.0}, "name": "one", "gap": 5.0}
    ]

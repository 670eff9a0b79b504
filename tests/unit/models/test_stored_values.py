"""Stored values travel whole between processes of neighbouring versions: a new figure needs its field and nothing else.

These tests add a figure to a worker's report and to its facts. No code between the worker that sets it and the planner
or page that reads it names the fields, and no migration is needed.
"""

import json
from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest

from models.stored_values import from_json, to_json
from scheduling.costs import LearnedCurves, ProfiledCurves, ServingCurves, WorkerCurves
from scheduling.kv_memory import KvMemory
from scheduling.request import RowLength
from scheduling.worker_facts import Loadable, WorkerFacts, WorkerReport

CURVES = ServingCurves((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.5))
LEARNED = LearnedCurves(CURVES, error=0.25, windows=10, version=3, typical=(4.0, 20.5))
MEMORY = KvMemory(1_000, 10, True, 32, 4, windowed_bytes=8, window_tokens=64)
FACTS = WorkerFacts(
    "w1",
    "small",
    "cpu",
    MEMORY,
    ProfiledCurves(CURVES, quick=True),
    lacks=("logprobs",),
    adapters=("french",),
    prefix_cache=True,
    loadable={"small": Loadable(2.5, MEMORY, CURVES), "large": Loadable(20.0, KvMemory(500, 20), CURVES)},
    model_changes=2,
    version="1.0.0",
    instance="host#boot:7",
    fingerprints={"small": "a1", "french": "b2"},
)
REPORT = WorkerReport(
    max_rows=3,
    fault="ConnectError",
    curves=LEARNED,
    row_lengths={"r1": RowLength(16, 40, 90)},
    shared_tokens=512,
    guessed_tokens=9,
    right_guesses=4,
    clock_ahead_s=-3,
    stopped_loops=2,
    saved_tokens=70,
)


@dataclass(frozen=True, slots=True)
class NewerReport(WorkerReport):
    """The report of a next version, which knows the device's temperature."""

    temperature_c: float = 20.0


@dataclass(frozen=True, slots=True)
class NewerFacts(WorkerFacts):
    """The facts of a next version, which knows the power that the device may draw."""

    power_w: int = 300


@pytest.mark.parametrize("value", [FACTS, REPORT, WorkerFacts("w1", "small", "cpu", KvMemory(1, 1)), WorkerReport()])
def test_a_value_is_read_as_it_was_stored(value: WorkerFacts | WorkerReport) -> None:
    assert from_json(type(value), to_json(value)) == value


@pytest.mark.parametrize("value", [FACTS, REPORT])
def test_these_tests_store_every_figure_of_a_worker(value: WorkerFacts | WorkerReport) -> None:
    missing = WorkerReport() if value is REPORT else WorkerFacts("", "", "", KvMemory(1, 1))
    assert [one.name for one in fields(value) if getattr(value, one.name) == getattr(missing, one.name)] == []


@pytest.mark.parametrize("curves", [None, ProfiledCurves(CURVES), ProfiledCurves(CURVES, quick=True), LEARNED])
def test_learned_curves_are_told_from_measured_ones(curves: WorkerCurves | None) -> None:
    stored = to_json(WorkerFacts("w1", "small", "cpu", MEMORY, curves))
    assert from_json(WorkerFacts, stored).curves == curves


def figures(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}


@pytest.mark.parametrize(
    ("value", "newer"),
    [(REPORT, NewerReport(**figures(REPORT), temperature_c=71.5)), (FACTS, NewerFacts(**figures(FACTS), power_w=700))],
)
def test_a_new_figure_is_read_by_those_that_know_it_and_ignored_by_those_that_do_not(value: Any, newer: Any) -> None:
    stored = to_json(newer)
    assert from_json(type(newer), stored) == newer
    assert from_json(type(value), stored) == value


@pytest.mark.parametrize("value", [REPORT, FACTS])
def test_every_figure_but_the_first_four_facts_may_be_missing(value: Any) -> None:
    required = [one.name for one in fields(value) if one.default is MISSING and one.default_factory is MISSING]
    assert required in ([], ["name", "model", "device", "memory"])
    stored = json.loads(to_json(value))
    read = from_json(type(value), json.dumps({name: stored[name] for name in required}))
    assert read == type(value)(*(getattr(value, name) for name in required))

"""A worker's state, as the page of workers says it in one word, and what it may be given."""

from dataclasses import replace
from typing import Any

import pytest

from models.registered_workers import RegisteredWorker, WorkerLoad
from scheduling.costs import LearnedCurves, ProfiledCurves, ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import Loadable, WorkerFacts, WorkerReport

ALIVE_S = 10.0
CURVES = ServingCurves((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.5))
FACTS = WorkerFacts("w1", "small", "cpu", KvMemory(1000, 10, max_rows=8), ProfiledCurves(CURVES))
BUSY, SENT = WorkerLoad(lasting=1), WorkerLoad(sent=1)
FAULTY = WorkerReport(fault="no answer")


def worker(heartbeat_age_s: float = 1.0, **more: Any) -> RegisteredWorker:
    return RegisteredWorker(FACTS, heartbeat_age_s=heartbeat_age_s, **more)


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (worker(), "idle"),
        (worker(load=BUSY), "running"),
        (worker(load=replace(BUSY, sent=1)), "running"),
        (worker(load=SENT), "batch_sent"),
        (worker(load=SENT, drained=True), "drained"),
        (worker(10.0, load=BUSY), "running"),  # exactly as old as a heartbeat may be
        (worker(10.1, load=BUSY), "lost"),
        (worker(not_consuming=True), "takes_no_messages"),
        (worker(10.1, not_consuming=True), "lost"),
        (worker(report=FAULTY, load=BUSY), "set_aside"),
        (worker(wanted_model="large", load=BUSY), "changing"),
        (worker(10.1, report=FAULTY), "lost"),
        (worker(stopping=True, load=BUSY), "stopping"),
        (worker(drained=True, load=BUSY), "draining"),
        (worker(drained=True), "drained"),
        (worker(stopped=True, load=BUSY), "stopped"),
        (worker(99.0, stopped=True), "stopped"),  # it deregistered, so nobody misses its heartbeat
    ],
)
def test_a_workers_state_is_the_first_thing_that_keeps_batches_from_it(given: RegisteredWorker, state: str) -> None:
    assert given.state(ALIVE_S) == state


def test_what_the_last_heartbeat_said_replaces_what_was_registered() -> None:
    learned = LearnedCurves(CURVES, error=0.25, windows=10, version=3, typical=(4.0, 20.5))
    told = worker(report=WorkerReport(max_rows=3, curves=learned))
    assert (worker().memory.max_rows, worker().curves) == (8, FACTS.curves)
    assert (told.memory.max_rows, told.curves) == (3, learned)


def test_a_worker_that_changes_its_model_is_seen_with_the_next_ones_memory_and_costs() -> None:
    large = Loadable(2.0, KvMemory(500, 20), CURVES)
    changing = replace(
        worker(report=WorkerReport(max_rows=3), wanted_model="large"), facts=replace(FACTS, loadable={"large": large})
    )
    assert changing.changing
    assert (changing.changed.model, changing.changed.memory) == ("large", large.memory)
    assert changing.changed.curves == ProfiledCurves(CURVES)
    assert worker(wanted_model="large").changed.model == "small"  # it cannot load it

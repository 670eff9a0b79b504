"""Rates of answers in figures that add up by hand: with FLAT a row takes 0.1 s a token, however many run."""

from dataclasses import replace

import pytest

from scheduling.policy import Worker
from scheduling.sharing.background.background_part import REFILL_S
from scheduling.sharing.model_fleet import ModelFleet
from scheduling.sharing.model_queue import ModelQueue
from scheduling.worker_facts import Loadable
from tests.unit.scheduling.scheduling_builders import FLAT, a_line, a_memory, a_request, a_row, a_worker

# The other model holds rows of 10 + 100 tokens four at a time.
LOADABLE = {"a": Loadable(3.0, a_memory(10_000), FLAT), "b": Loadable(3.0, a_memory(440), FLAT)}


def a_changer(name: str = "w", model: str = "a", rows: int = 0) -> Worker:
    running = [a_row(f"{name}{number}", predicted=101) for number in range(rows)]
    return replace(a_worker(name, rows=running), model=model, loadable=LOADABLE)


def a_queue(count: int, background: bool = False) -> ModelQueue:
    queue = ModelQueue()
    for number in range(count):
        name = f"r{number}"
        queue.add(a_line(name, predicted=100) if background else a_request(name, predicted=100))
    return queue


def row_s(rows: int, length: int = 10) -> float:
    """The seconds of rows that run together: prefill, 100 iterations, and what passes until the next ones join."""
    return 0.001 * rows * length + 10 + REFILL_S


def test_a_worker_answers_what_runs_and_waits_as_fast_as_it_can_run_rows() -> None:
    fleet = ModelFleet([worker := a_changer(rows=2)], {"a": a_queue(3)})
    assert fleet.present_rate(worker) == pytest.approx(5 / row_s(5), rel=1e-3)
    assert ModelFleet([worker], {}).present_rate(a_changer()) == pytest.approx(2 / row_s(2, 11), rel=1e-3)


def test_with_another_model_the_change_counts_and_its_memory() -> None:
    fleet = ModelFleet([worker := a_changer()], {"b": a_queue(8)})
    assert fleet.rate_with(worker, "b") == pytest.approx(8 / (3.0 + 2 * row_s(4)))
    busy = ModelFleet([worker := a_changer(rows=1)], {"b": a_queue(8)})
    assert busy.rate_with(worker, "b") == pytest.approx(8 / (3.0 + 3.0 + 2 * row_s(4)))  # rows run on as long


def test_a_second_worker_helps_only_if_the_first_would_take_longer_than_both() -> None:
    first, second = replace(a_changer("w1", "b"), memory=LOADABLE["b"].memory), a_changer("w2")
    assert ModelFleet([first, second], {"b": a_queue(1)}).rate_with(second, "b") == 0.0
    many = ModelFleet([first, second], {"b": a_queue(80)})
    assert many.rate_with(second, "b") == pytest.approx(40 / (3.0 + 10 * row_s(4)))


def test_a_change_counts_at_once() -> None:
    fleet = ModelFleet([worker := a_changer(rows=2)], {"b": a_queue(4)})
    assert not fleet.serves("b")
    fleet.change(worker, "b")
    assert fleet.serves("b")
    assert not fleet.serves("a")


def test_background_requests_count_for_a_worker_with_nothing_else() -> None:
    queues = {"b": a_queue(4, background=True)}
    idle, busy = a_changer("w1"), a_changer("w2", rows=1)
    fleet = ModelFleet([idle, busy], queues)
    assert fleet.rate_with(idle, "b") > 0
    assert fleet.rate_with(busy, "b") == 0.0
    assert ModelFleet([idle], queues | {"a": a_queue(1)}).rate_with(idle, "b") == 0.0
    assert fleet.has_waiting("b")

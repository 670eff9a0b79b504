"""A worker's state, as the page of workers says it in one word."""

from typing import Any

import pytest

from models.operations.fleet_use import WorkerUse

ALIVE_S = 10.0


def worker(heartbeat_age_s: float = 1.0, **more: Any) -> WorkerUse:
    values: dict[str, Any] = {
        "name": "w1",
        "model": "small",
        "device": "cpu",
        "version": None,
        "theta_bytes": 1000,
        "delta_bytes": 10,
        "up_s": 60.0,
        "stopped": False,
        "stopping": False,
        "not_consuming": False,
        "drained": False,
        "fault": None,
        "rows": 0,
        "held_tokens": 0,
        "reserved_tokens": 0,
        "lasting": 0,
        "sent": 0,
        "out_of_memory": 0,
        "guessed_tokens": 0,
        "right_guesses": 0,
    }
    return WorkerUse(**(values | {"heartbeat_age_s": heartbeat_age_s} | more))


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (worker(), "idle"),
        (worker(lasting=1), "running"),
        (worker(lasting=1, sent=1), "running"),
        (worker(sent=1), "batch_sent"),
        (worker(sent=1, drained=True), "drained"),
        (worker(10.0, lasting=1), "running"),  # exactly as old as a heartbeat may be
        (worker(10.1, lasting=1), "lost"),
        (worker(not_consuming=True), "takes_no_messages"),
        (worker(10.1, not_consuming=True), "lost"),
        (worker(fault="no answer", lasting=1), "set_aside"),
        (worker(wanted_model="large", lasting=1), "changing"),
        (worker(10.1, fault="no answer"), "lost"),
        (worker(stopping=True, lasting=1), "stopping"),
        (worker(drained=True, lasting=1), "draining"),
        (worker(drained=True), "drained"),
        (worker(stopped=True, lasting=1), "stopped"),
        (worker(99.0, stopped=True), "stopped"),  # it deregistered, so nobody misses its heartbeat
    ],
)
def test_a_workers_state_is_the_first_thing_that_keeps_batches_from_it(given: WorkerUse, state: str) -> None:
    assert given.state(ALIVE_S) == state


def test_a_budget_in_tokens_is_told_from_one_in_bytes() -> None:
    assert worker().capacity_tokens == 100
    assert not worker().memory_in_tokens
    assert worker(delta_bytes=1).memory_in_tokens

"""The demo's arrivals and the examples that its predictor learns from."""

import itertools
from dataclasses import replace
from threading import Event, Lock
from typing import Any

import pytest

from cli.demo.demo_workload import SENDERS, poisson_arrivals, send_all, training_examples


def test_the_rate_is_kept_on_average() -> None:
    arrivals = poisson_arrivals(2000, 50.0, seed=1)
    assert arrivals[-1].at_s == pytest.approx(2000 / 50.0, rel=0.1)
    assert all(before.at_s < after.at_s for before, after in itertools.pairwise(arrivals))


def test_nothing_that_will_be_submitted_is_learned_from() -> None:
    arrivals = poisson_arrivals(300, 5.0, seed=0)
    examples = list(training_examples(1000, arrivals, seed=0))
    submitted = {(arrival.request.instruction, arrival.request.input) for arrival in arrivals}
    assert len(examples) > 900
    assert not submitted & {(example["instructions"], example["input"]) for example in examples}


class SlowService:
    """A client of a service that answers no call before all senders have made one, and is stopped by then."""

    def __init__(self, stopping: Event) -> None:
        self.stopping, self.calls, self.lock = stopping, 0, Lock()

    def model(self) -> str:
        return "bundled"

    def create(self, body: Any) -> Any:
        with self.lock:
            self.calls += 1
            if self.calls == SENDERS:
                self.stopping.set()
        assert self.stopping.wait(20)
        return {"id": f"resp_{self.calls}"}


def test_nothing_more_is_sent_once_it_is_stopped() -> None:
    stopping = Event()
    service = SlowService(stopping)
    at_once = [replace(arrival, at_s=0.0) for arrival in poisson_arrivals(3 * SENDERS, 50.0, seed=1)]
    send_all(service, at_once, stopping, lambda *_: None)  # type: ignore[arg-type]  # it has what sending needs
    assert service.calls == SENDERS

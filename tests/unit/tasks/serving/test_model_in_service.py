"""A worker changes its model at an order, goes on with the old one if the new one cannot be loaded, and can leave."""

from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import Loadable, WorkerFacts
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.model_in_service import ModelInService

LOADABLE = Loadable(2.0, KvMemory(100, 1), ServingCurves((0, 0, 0, 1), (0, 0, 0, 1)))
WITHIN_S = 60.0


class Runner:
    """Notes what is asked of it."""

    def __init__(self, events: SimpleQueue[str], model: str, order: Callable[[str], None]) -> None:
        self.events, self.model, self.order, self.late, self.works = events, model, order, False, True

    def start(self) -> None:
        self.events.put(f"serves {self.model}")

    def serve(self, batch_id: int) -> None:
        self.events.put(f"batch {batch_id} of {self.model}")

    def leave_model(self, running_on_s: float) -> None:
        self.events.put(f"leaves {self.model} within {running_on_s:g} s")

    def drain(self, within_s: float, running_on_s: float) -> None:
        self.events.put("drains")

    def stop(self) -> None:
        self.events.put("stops")


class Worker:
    """The service of `a` and `b`, with the events of its runners; models in `broken` cannot be loaded."""

    def __init__(self) -> None:
        self.events: SimpleQueue[str] = SimpleQueue()
        self.broken: set[str] = set()
        self.runners: list[Runner] = []
        self.service = ModelInService("a", self.load, self.make_runner, lambda reason: self.events.put(reason))
        self.service.start()
        assert self.event() == "serves a"

    def load(self, model: str) -> ServedModel:
        if model in self.broken:
            raise OSError(model)
        loadable = dict.fromkeys(("a", "b"), LOADABLE)
        facts = WorkerFacts("w", model, "cpu", KvMemory(100, 1), loadable=loadable)
        return ServedModel(cast(Any, None), cast(Any, SimpleNamespace(decode=lambda ids: f"text of {model}")), facts)

    def make_runner(self, served: ServedModel, order: Callable[[str], None]) -> BatchRunner:
        self.runners.append(Runner(self.events, served.facts.model, order))
        return cast(BatchRunner, self.runners[-1])

    def event(self) -> str:
        return self.events.get(timeout=WITHIN_S)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_an_order_changes_the_model_once_and_batches_go_to_the_new_one(worker: Worker) -> None:
    for _ in range(3):  # each heartbeat repeats it
        worker.runners[0].order("b")
    assert [worker.event() for _ in range(2)] == ["leaves a within 2 s", "serves b"]
    worker.service.serve(7)
    assert worker.event() == "batch 7 of b"
    assert worker.service.decode(()) == "text of b"
    worker.runners[1].order("a")
    assert [worker.event() for _ in range(2)] == ["leaves b within 2 s", "serves a"]


def test_a_model_that_cannot_be_loaded_leaves_the_one_before_in_service(worker: Worker) -> None:
    worker.broken = {"b"}
    worker.runners[0].order("b")
    assert [worker.event() for _ in range(2)] == ["leaves a within 2 s", "serves a"]
    assert worker.service.works


def test_a_worker_that_can_load_neither_model_ends(worker: Worker) -> None:
    worker.broken = {"a", "b"}
    worker.runners[0].order("b")
    assert [worker.event() for _ in range(2)] == ["leaves a within 2 s", "neither b nor a could be loaded"]


def test_a_step_that_does_not_end_keeps_the_next_model_from_being_loaded_beside_it(worker: Worker) -> None:
    worker.runners[0].late = True
    worker.runners[0].order("b")
    assert worker.event() == "leaves a within 2 s"
    assert worker.event() == "the engine's step did not end before the change of model"


def test_a_worker_that_leaves_changes_no_more(worker: Worker) -> None:
    worker.service.drain(5.0)
    assert worker.event() == "drains"
    worker.runners[0].order("b")
    worker.service.stop()
    assert worker.event() == "stops"
    assert [runner.model for runner in worker.runners] == ["a"]


def test_a_model_that_it_cannot_load_is_not_loaded_at_an_order(worker: Worker) -> None:
    worker.runners[0].order("c")
    worker.runners[0].order("b")
    assert worker.event() == "leaves a within 2 s"
    assert worker.event() == "serves b"

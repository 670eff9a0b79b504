"""Copies beside a device's computing, with a stream that only notes what it is told."""

from time import perf_counter, thread_time

import pytest
import torch

from inference.accelerator import (
    HostCopies,
    clock_of,
    copies_beside,
    device_problem,
)

CPU = torch.device("cpu")


class NotedStream:
    """A stream, and its events, that note in which order they are used."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done = False

    def wait_stream(self, other):
        self.notes.append(f"waits for {other}")

    def record_event(self, event):
        event.recorded = True
        self.notes.append("event")

    def __enter__(self):
        self.notes.append("begins")

    def __exit__(self, *_):
        self.notes.append("ends")

    def event(self):
        return NotedEvent(self)


class NotedEvent:
    def __init__(self, stream: NotedStream) -> None:
        self.stream, self.recorded = stream, False

    def query(self):
        return self.recorded and self.stream.done

    def elapsed_time(self, other):
        return 250.0

    def synchronize(self):
        self.stream.notes.append("host waits")
        self.stream.done = True


def test_a_copy_begins_behind_what_was_computed_and_is_read_once_it_has_ended():
    stream, sources = NotedStream(), [torch.arange(3), torch.ones(2, 2)]
    copy = copies_beside(sources, stream, "computing", stream.event)
    assert stream.notes == ["waits for computing", "begins", "event", "event", "ends"]
    assert copy.seconds is None
    assert all(torch.equal(one, source) for one, source in zip(copy.tensors(), sources, strict=True))
    assert stream.notes[-1] == "host waits"
    assert copy.seconds == pytest.approx(0.25)
    assert copy.nbytes == sum(source.nbytes for source in sources)


def test_on_a_cpu_a_copy_has_ended_at_once():
    sources = [torch.arange(3), torch.ones(2, 2)]
    copy = HostCopies(CPU).copy(sources)
    assert copy.seconds is not None
    assert all(torch.equal(one, source) for one, source in zip(copy.tensors(), sources, strict=True))


@pytest.mark.parametrize("device", ["cuda:97", "no such thing"])
def test_a_device_that_is_not_there_is_named_in_one_line(device):
    problem = device_problem(device)
    assert problem
    assert "\n" not in problem


@pytest.mark.parametrize(("device", "clock"), [("cpu", thread_time), ("mps", perf_counter), ("cuda", perf_counter)])
def test_what_else_the_machine_computes_does_not_count_on_a_cpu(device, clock):
    assert clock_of(torch.device(device)) is clock

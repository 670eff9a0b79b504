from threading import Event, Thread
from time import monotonic
from types import SimpleNamespace
from typing import cast

import pytest

from processes.celery.messages import SOON, Messages
from tasks.planning.leader import Leader
from tasks.planning.planner import Outlook
from tasks.planning.planner_loop import LONG_PAUSE_S, STEP_INTERVAL_S, PlannerLoop, PlanQueue, StepPacer, pause_s


class Clock:
    """Stands still except while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def pacer(clock: Clock) -> StepPacer:
    return StepPacer(2.0, clock, clock.sleep)


def test_the_next_step_begins_one_interval_after_the_last_one_began():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    clock.now += 0.5  # what the step took
    paced.wait()
    assert clock.now == 102.0


def test_a_step_that_took_longer_than_the_interval_delays_nothing():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    clock.now += 5.0
    paced.wait()
    assert clock.now == 105.0


def test_a_longer_interval_holds_for_one_step():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    paced.lengthen(6.0)
    paced.wait()
    assert clock.now == 106.0
    paced.wait()
    assert clock.now == 108.0


def test_of_several_longer_intervals_the_longest_holds():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    assert paced.pause_s == 2.0
    paced.lengthen(6.0)
    paced.lengthen(4.0)
    paced.lengthen(1.0)
    assert paced.pause_s == 6.0
    paced.wait()
    assert clock.now == 106.0


def test_a_hurried_step_begins_a_shortest_interval_after_the_last_one():
    clock = Clock()
    paced = pacer(clock)
    paced.wait()
    paced.lengthen(6.0)
    paced.hurry()
    paced.wait()
    assert clock.now == 102.0


def test_a_pause_that_goes_on_ends_when_a_step_is_hurried():
    began, hurried = Event(), Event()

    def sleep(seconds: float) -> None:
        began.set()
        assert hurried.wait(20)
        clock.now += 3.0

    clock = Clock()
    paced = StepPacer(2.0, clock, sleep)
    paced.wait()
    paced.lengthen(60.0)
    waiting = Thread(target=paced.wait)
    waiting.start()
    assert began.wait(20)
    paced.hurry()
    hurried.set()
    waiting.join(20)
    assert clock.now == 103.0


def test_of_two_pauses_one_is_a_whole_one_however_often_steps_are_hurried():
    clock = Clock()
    paced = pacer(clock)
    began = []
    for _ in range(5):
        paced.wait()
        paced.lengthen(6.0)
        paced.hurry()
        began.append(clock.now)
    assert began == [100.0, 102.0, 108.0, 110.0, 116.0]


def test_a_step_is_not_hurried_by_what_came_before_the_last_one():
    clock = Clock()
    paced = pacer(clock)
    paced.hurry()
    paced.wait()
    paced.lengthen(6.0)
    paced.wait()
    assert clock.now == 106.0


@pytest.mark.parametrize(
    ("pause_s", "kick", "hurried"), [(60.0, SOON, True), (60.0, b"", False), (LONG_PAUSE_S / 2, SOON, False)]
)
def test_a_kick_for_a_request_of_no_job_ends_a_long_pause(pause_s, kick, hurried):
    loop = PlannerLoop(cast(Leader, SimpleNamespace(outlook=Outlook())), cast(Messages, None), PlanQueue(), 1.0)
    loop._pacer.wait()
    loop._pacer.lengthen(pause_s)
    loop.on_kick([kick])
    assert (loop._pacer._begins_at < monotonic() + STEP_INTERVAL_S) == hurried


@pytest.mark.parametrize(
    ("cpu_s", "some_worker_is_idle", "all_decode"),
    [(0.001, 0.01, 0.025), (0.004, 0.04, 0.1), (0.008, 0.08, 0.12), (0.03, 0.3, 0.3), (0.5, 1.0, 1.0)],
)
def test_costly_steps_are_further_apart_while_every_worker_decodes(cpu_s, some_worker_is_idle, all_decode):
    assert pause_s(cpu_s, shortest_step_s=None) == pytest.approx(some_worker_is_idle)
    assert pause_s(cpu_s, shortest_step_s=0.03) == pytest.approx(all_decode)
    assert pause_s(cpu_s, shortest_step_s=0.0) == pytest.approx(some_worker_is_idle)

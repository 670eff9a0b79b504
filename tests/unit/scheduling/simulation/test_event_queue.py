from math import inf

from scheduling.simulation.event_queue import DecisionTimer, Timetable, WorkerEvents


def test_items_leave_a_timetable_when_their_instant_has_come() -> None:
    timetable = Timetable([(1.0, "a"), (1.0, "b"), (3.0, "c")])
    assert timetable.next_at() == 1.0
    assert list(timetable.pop_due(2.0)) == ["a", "b"]
    assert list(timetable.pop_due(3.0)) == ["c"]
    assert timetable.next_at() == inf


def test_scheduling_a_worker_again_replaces_its_event() -> None:
    events = WorkerEvents()
    events.schedule("w", 1.0)
    events.schedule("w", 2.0)
    assert events.next_at() == 2.0
    events.schedule("w", inf)
    assert events.next_at() == inf


def test_a_worker_that_has_left_has_no_event() -> None:
    events = WorkerEvents()
    events.schedule("gone", 1.0)
    events.schedule("w", 2.0)
    events.cancel("gone")
    assert list(events.pop_due(5.0)) == ["w"]


def test_events_that_are_scheduled_while_others_are_handled_are_due_too() -> None:
    events = WorkerEvents()
    events.schedule("a", 1.0)
    handled = []
    for worker in events.pop_due(1.0):
        handled.append(worker)
        if worker == "a":
            events.schedule("b", 1.0)
    assert handled == ["a", "b"]


def test_the_policy_is_asked_once_at_the_earliest_requested_instant() -> None:
    timer = DecisionTimer(tick_s=0.0)
    timer.request(2.0)
    timer.request(1.0)
    assert not timer.pop_due(0.5)
    assert timer.pop_due(1.0)
    assert not timer.pop_due(2.0)


def test_on_a_clock_the_policy_is_asked_at_the_next_tick() -> None:
    timer = DecisionTimer(tick_s=0.25)
    timer.request(0.3)
    assert timer.next_at == 0.5
    timer.pop_due(0.5)
    timer.request(0.75)
    assert timer.next_at == 0.75

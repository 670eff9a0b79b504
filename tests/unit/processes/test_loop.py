"""Work at ticks, and by itself without them."""

from threading import Event

import psycopg
from sqlalchemy.exc import OperationalError

from models.connections.database_errors import DISK_FULL
from processes.loop import Loop


def test_it_works_by_itself_while_no_tick_comes():
    done = Event()
    Loop("work", done.set, every_s=0.0).start()
    assert done.wait(20)


def test_it_is_seen_to_work_while_idle_and_for_a_sensible_time_at_work():
    seen: list[bool] = []
    work = Loop("work", lambda: seen.append(not work.hangs), every_s=60.0)
    assert not work.hangs
    work.step()
    assert seen == [True]


def test_it_works_sooner_when_told_to():
    done = Event()
    work = Loop("work", done.set, every_s=600.0)
    work.start()
    work.step_within(0.0)
    assert done.wait(20)


def test_what_is_due_later_does_not_delay_what_is_due_sooner():
    done = Event()
    work = Loop("work", done.set, every_s=600.0)
    work.step_within(0.0)
    work.step_within(300.0)
    work.start()
    assert done.wait(20)


def test_steps_that_fail_one_after_the_other_are_told_until_one_succeeds():
    ends = iter([False, False, True, False])

    def do() -> None:
        if not next(ends):
            raise ValueError("no right\nto write")

    work = Loop("work", do, every_s=60.0, expected=(ValueError,))
    told = []
    for _ in range(4):
        work.step()
        told.append(work.failure)
    assert told == [None, "no right", None, None]


def test_steps_without_a_database_are_no_failure_of_the_process():
    def do() -> None:
        raise OperationalError("select 1", {}, psycopg.OperationalError("connection refused"))

    work = Loop("work", do, every_s=60.0)
    work.step()
    work.step()
    assert work.failure is None


def test_steps_for_which_a_database_that_answers_has_no_room_are_a_failure():
    full = psycopg.errors.DiskFull("could not extend file: No space left on device")

    def do() -> None:
        raise OperationalError("insert", {}, full)

    work = Loop("work", do, every_s=60.0)
    work.step()
    work.step()
    assert work.failure == DISK_FULL


def test_once_stopped_it_begins_nothing():
    done = Event()
    work = Loop("work", done.set, every_s=600.0, stop_within_s=1.0)
    work.stop()
    work.step_within(0.0)
    work.start()
    assert not done.is_set()


def test_work_that_gets_on_is_at_work_since_then_and_idle_work_cannot_get_on():
    seen: list[bool] = []

    def long_work() -> None:
        before = work.busy_s
        while work.busy_s == before:
            pass
        lasted = work.busy_s
        work.report_progress()
        seen.append(work.busy_s < lasted)

    work = Loop("work", long_work, every_s=60.0)
    work.step()
    work.report_progress()
    assert (seen, work.busy_s) == ([True], 0.0)

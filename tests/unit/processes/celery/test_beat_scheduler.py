from celery import Celery

from processes.celery.beat_scheduler import TickScheduler


def test_beat_sleeps_for_all_of_the_time_that_is_left_until_a_tick():
    scheduler = TickScheduler(Celery("test"), lazy=True)
    assert scheduler.adjust(0.1) == 0.1

"""Submissions are announced soon, many by one announcement, and a failure is followed by the next one."""

from threading import Event

from sqlalchemy.exc import OperationalError

from webapp.waiting.notices import Announcer


class Notified:
    """Counts notifications; they wait until they are let through, and fail while the database is away."""

    def __init__(self) -> None:
        self.count, self.away = 0, False
        self.begun, self.let_through = Event(), Event()

    def __call__(self) -> None:
        self.count += 1
        self.begun.set()
        assert self.let_through.wait(60)
        if self.away:
            raise OperationalError("select", {}, Exception("away"))


def test_what_is_stored_while_one_is_announced_is_announced_together():
    notified = Notified()
    announcer = Announcer(notified)
    announcer.announce()
    assert notified.begun.wait(60)
    for _ in range(100):
        announcer.announce()
    notified.let_through.set()
    announcer.close()
    assert notified.count == 2


def test_after_a_failure_the_next_submission_is_announced():
    notified = Notified()
    notified.away = True
    notified.let_through.set()
    announcer = Announcer(notified)
    announcer.announce()
    assert notified.begun.wait(60)
    notified.begun.clear()
    announcer.announce()
    assert notified.begun.wait(60)
    announcer.close()


def test_a_call_that_comes_while_the_process_ends_is_served_without_an_announcement():
    notified = Notified()
    announcer = Announcer(notified)
    announcer.close()
    announcer.announce()
    assert notified.count == 0

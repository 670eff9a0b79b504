"""Calls that wait: one listener for all of them, woken by what ended, bounded in number and in time."""

import threading
from collections.abc import Collection
from queue import Empty, SimpleQueue

import pytest
from sqlalchemy.exc import OperationalError

from models.client_requests import RequestView
from protocol.client_errors import Busy, TooManyWaiting
from webapp.waiting.waiting_calls import WaitingCalls


class Ended:
    """Stands for the database: which requests were deleted, which is how they end here, and what it was asked."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.asked: list[set[str]] = []
        self.errors: list[Exception] = []

    def __call__(self, ids: Collection[str]) -> dict[str, RequestView | None]:
        self.asked.append(set(ids))
        if self.errors:
            raise self.errors.pop()
        return dict.fromkeys(self.ids & set(ids))


class Heard:
    """Stands for the notifications: what was put is heard; None asks for a look at everything."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[set[str] | None] = SimpleQueue()
        self.listens = threading.Event()
        self.closed = threading.Event()

    def wait(self, within_s: float) -> set[str] | None:
        self.listens.set()
        try:
            return self.queue.get(timeout=within_s)
        except Empty:
            return set()

    def close(self) -> None:
        self.closed.set()


class Setting:
    def __init__(self, max_calls: int = 9, max_calls_of_tenant: int = 9) -> None:
        self.ended, self.heard = Ended(), Heard()
        self.calls = WaitingCalls(self.ended, self.heard, max_calls=max_calls, max_calls_of_tenant=max_calls_of_tenant)

    def over(self, id: str, within_s: float = 30) -> str | None:
        """Wait for a request as a call does; why that was over."""
        call = self.calls.begin(id)
        call.wait_until_over(within_s)
        self.calls.end(call)
        return call.over


@pytest.fixture
def setting():
    setting = Setting()
    yield setting
    setting.calls.close()


def test_a_call_wakes_when_its_request_is_heard_to_have_ended(setting):
    call = setting.calls.begin("a")
    assert setting.heard.listens.wait(30)
    setting.ended.ids.add("a")
    setting.heard.queue.put({"a", "b"})
    call.wait_until_over(30)
    assert (call.over, call.view) == ("ended", None)
    assert {"b"} not in setting.ended.asked


def test_what_was_not_heard_is_found_by_looking_at_all(setting):
    setting.ended.ids.add("a")
    assert setting.over("a") == "ended"


def test_a_call_that_waits_too_long_is_told_so(setting):
    assert setting.over("a", within_s=0.01) is None


def test_two_calls_for_one_request_both_wake(setting):
    calls = [setting.calls.begin("a") for _ in range(2)]
    setting.ended.ids.add("a")
    setting.heard.queue.put(None)
    for call in calls:
        call.wait_until_over(30)
    assert [call.over for call in calls] == ["ended", "ended"]


def test_a_database_that_is_away_for_a_while_wakes_nobody_wrongly(setting):
    setting.ended.ids.add("a")
    setting.ended.errors.append(OperationalError("select", {}, Exception("away")))
    assert setting.over("a") == "ended"
    assert len(setting.ended.asked) >= 2


def test_nobody_is_asked_while_nobody_waits(setting):
    setting.ended.ids.add("a")
    setting.over("a")
    asked = len(setting.ended.asked)
    setting.heard.queue.put(None)
    setting.heard.queue.put({"a"})
    setting.calls.close()
    assert len(setting.ended.asked) == asked
    assert setting.heard.closed.is_set()


def test_a_call_whose_client_leaves_is_over(setting):
    call = setting.calls.begin("a")
    call.leave()
    call.wait_until_over(30)
    assert call.over == "left"


def test_a_call_is_woken_for_something_new_and_waits_on(setting):
    call = setting.calls.begin("a")
    call.wake()
    assert call.wait(30)
    assert not call.wait(0.01)
    assert call.over is None


def test_more_than_so_many_calls_do_not_wait():
    calls = Setting(max_calls=1).calls
    slot = calls.reserve_slot("acme")
    with pytest.raises(Busy, match="background=true"):
        calls.reserve_slot("acme")
    slot.close()
    slot.close()  # closing again frees no second slot
    with calls.reserve_slot("acme"), pytest.raises(Busy):
        calls.reserve_slot("acme")
    calls.reserve_slot("acme")
    with pytest.raises(Busy):
        calls.reserve_slot("acme")


def test_one_tenant_leaves_slots_to_the_others():
    calls = Setting(max_calls=3, max_calls_of_tenant=2).calls
    slot = calls.reserve_slot("acme")
    calls.reserve_slot("acme")
    with pytest.raises(TooManyWaiting, match="MAGNUS_WAITING_CALLS"):
        calls.reserve_slot("acme")
    calls.reserve_slot("globex")
    slot.close()
    calls.reserve_slot("acme")


def test_who_waits_when_the_process_stops_is_answered_and_nobody_waits_any_more(setting):
    call = setting.calls.begin("a")
    setting.calls.stop()
    call.wait_until_over(30)
    assert call.over == "stopping"
    assert setting.over("b") == "stopping"
    with pytest.raises(Busy, match="stop"):
        setting.calls.reserve_slot("acme")

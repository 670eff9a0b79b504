"""Calls that wait: one watcher for all of them, woken by what is final, bounded in number and in time."""

import threading
from collections.abc import Collection

import pytest
from sqlalchemy.exc import OperationalError

from webapp.client_errors import Busy, TooManyWaiting
from webapp.waiting_calls import WaitingCalls


class FinalRequests:
    """Stands for the database: which requests are final, and how often it was asked."""

    def __init__(self) -> None:
        self.final: set[str] = set()
        self.asked: list[set[str]] = []
        self.was_asked = threading.Event()
        self.errors: list[Exception] = []

    def __call__(self, ids: Collection[str]) -> set[str]:
        self.asked.append(set(ids))
        self.was_asked.set()
        if self.errors:
            raise self.errors.pop()
        return self.final & set(ids)


def test_a_call_wakes_when_its_request_is_final() -> None:
    database = FinalRequests()
    calls = WaitingCalls(database, max_calls=2, max_calls_of_tenant=2, poll_interval_s=0.001)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(calls.wait("a", 30)))
    thread.start()
    assert database.was_asked.wait(30)
    database.final.add("a")
    thread.join()
    assert woken == [True]


def test_a_call_that_waits_too_long_is_told_so() -> None:
    assert (
        WaitingCalls(FinalRequests(), max_calls=1, max_calls_of_tenant=1, poll_interval_s=0.001).wait("a", 0.01)
        is False
    )


def test_two_calls_for_one_request_both_wake() -> None:
    database = FinalRequests()
    calls = WaitingCalls(database, max_calls=2, max_calls_of_tenant=2, poll_interval_s=0.001)
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(calls.wait("a", 30))) for _ in range(2)]
    for thread in threads:
        thread.start()
    database.final.add("a")
    for thread in threads:
        thread.join()
    assert woken == [True, True]


def test_a_database_that_is_away_for_a_while_wakes_nobody_wrongly() -> None:
    database = FinalRequests()
    database.final.add("a")
    database.errors.append(OperationalError("select", {}, Exception("away")))
    assert WaitingCalls(database, max_calls=1, max_calls_of_tenant=1, poll_interval_s=0.001).wait("a", 30) is True
    assert len(database.asked) >= 2


def test_nobody_is_asked_once_nobody_waits() -> None:
    database = FinalRequests()
    calls = WaitingCalls(database, max_calls=1, max_calls_of_tenant=1, poll_interval_s=0.001)
    database.final.add("a")
    assert calls.wait("a", 30)
    for thread in threading.enumerate():
        if thread.name == "waiting-calls":
            thread.join(30)
            assert not thread.is_alive()


def test_more_than_so_many_calls_do_not_wait() -> None:
    calls = WaitingCalls(FinalRequests(), max_calls=1, max_calls_of_tenant=9)
    calls.reserve_slot("acme")
    with pytest.raises(Busy, match="background=true"):
        calls.reserve_slot("acme")
    calls.release_slot("acme")
    calls.reserve_slot("acme")


def test_one_tenant_leaves_slots_to_the_others() -> None:
    calls = WaitingCalls(FinalRequests(), max_calls=3, max_calls_of_tenant=2)
    calls.reserve_slot("acme")
    calls.reserve_slot("acme")
    with pytest.raises(TooManyWaiting, match="MAGNUS_TENANT_WAITING_CALLS"):
        calls.reserve_slot("acme")
    calls.reserve_slot("globex")
    calls.release_slot("acme")
    calls.reserve_slot("acme")


def test_who_waits_when_the_process_stops_is_answered_and_nobody_waits_any_more() -> None:
    database = FinalRequests()
    calls = WaitingCalls(database, max_calls=2, max_calls_of_tenant=2, poll_interval_s=0.001)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(calls.wait("a", 30)))
    thread.start()
    assert database.was_asked.wait(30)
    calls.stop()
    thread.join()
    assert woken == [False]
    assert calls.wait("b", 30) is False
    with pytest.raises(Busy, match="stop"):
        calls.reserve_slot("acme")

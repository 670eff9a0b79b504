"""Groups of inserts with a stub of the database that stops where a test wants it to."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from time import sleep

import pytest
from sqlalchemy.exc import DataError, OperationalError

from models.client_requests import RequestView
from models.new_requests import NewRequest
from webapp.waiting.grouped_inserts import MOST_AT_ONCE, MOST_BYTES, GroupedInserts

CALLS = 2 * MOST_AT_ONCE


def request(name: str, size: int = 1) -> NewRequest:
    return NewRequest("acme", "small", name, "", "a" * size, {}, 1, 1, 1)


class Database:
    """Stores requests; each insert waits for `proceed`, and fails with `error` if it has the request `bad`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.groups: list[list[str]] = []
        self.began, self.proceed = SimpleQueue[None](), Event()
        self._error = error

    def insert(self, requests: Sequence[NewRequest]) -> list[RequestView]:
        self.groups.append([one.application for one in requests])
        self.began.put(None)
        assert self.proceed.wait(20)
        if self._error is not None and "bad" in self.groups[-1]:
            raise self._error
        return [RequestView(one, None, 0, None) for one in requests]  # type: ignore[arg-type]  # not looked at


def stored_together(database: Database, *requests: NewRequest) -> list[Future[RequestView]]:
    """Calls for all of these requests at once, while the insert of another one is under way."""
    inserts = GroupedInserts(database.insert)
    with ThreadPoolExecutor(CALLS) as calls:
        calls.submit(inserts.store, request("first"))
        database.began.get(timeout=20)
        answers = []
        for number, one in enumerate(requests, start=1):
            answers.append(calls.submit(inserts.store, one))
            eventually_waits(inserts, number)
        database.proceed.set()
    return answers


def eventually_waits(inserts: GroupedInserts, number: int) -> None:
    while len(inserts) < number:
        sleep(0.001)  # time between two looks; any value works


def name_of(answer: Future[RequestView]) -> str:
    return answer.result(20).request.application


def test_a_request_that_comes_alone_is_inserted_at_once():
    database = Database()
    database.proceed.set()
    inserts = GroupedInserts(database.insert)
    assert [inserts.store(request(name)).request.application for name in "ab"] == ["a", "b"]
    assert database.groups == [["a"], ["b"]]


def test_requests_that_come_during_an_insert_are_inserted_together_and_each_call_gets_its_own():
    database = Database()
    answers = stored_together(database, *(request(name) for name in "abc"))
    assert database.groups == [["first"], ["a", "b", "c"]]
    assert [name_of(answer) for answer in answers] == ["a", "b", "c"]


def test_a_group_has_at_most_a_number_of_requests_and_of_bytes():
    many = Database()
    stored_together(many, *(request(str(n)) for n in range(MOST_AT_ONCE + 1)))
    assert [len(group) for group in many.groups] == [1, MOST_AT_ONCE, 1]
    large = Database()
    stored_together(large, request("a"), request("b", 2 * MOST_BYTES), request("c", 2 * MOST_BYTES), request("d"))
    assert large.groups == [["first"], ["a"], ["b"], ["c"], ["d"]]


def test_if_one_of_a_group_is_refused_the_others_are_stored():
    database = Database(DataError(None, None, Exception("refused")))
    good, bad, other = stored_together(database, request("good"), request("bad"), request("other"))
    assert (name_of(good), name_of(other)) == ("good", "other")
    with pytest.raises(DataError):
        bad.result(20)
    assert sorted(database.groups[2:]) == [["bad"], ["good"], ["other"]]


def test_if_the_database_is_lost_no_call_tries_again_because_its_request_may_be_stored():
    database = Database(OperationalError(None, None, Exception("lost")))
    for answer in stored_together(database, request("good"), request("bad")):
        with pytest.raises(OperationalError):
            answer.result(20)
    assert database.groups == [["first"], ["good", "bad"]]


def test_if_the_call_that_inserts_ends_meanwhile_no_call_tries_again():
    database = Database(SystemExit())
    for answer in stored_together(database, request("good"), request("bad")):
        with pytest.raises(SystemExit):
            answer.result(20)
    assert database.groups == [["first"], ["good", "bad"]]


def test_a_call_that_ends_while_it_waits_holds_nobody_up():
    database, ended = Database(), Event()

    class Killed(Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert ended.wait(20)
            raise SystemExit

    inserts = GroupedInserts(database.insert, Killed)
    with ThreadPoolExecutor(2) as calls:
        first = calls.submit(inserts.store, request("first"))
        database.began.get(timeout=20)
        killed = calls.submit(inserts.store, request("killed"))
        eventually_waits(inserts, 1)
        database.proceed.set()
        first.result(20)
        ended.set()
        with pytest.raises(SystemExit):
            killed.result(20)
    assert inserts.store(request("later")).request.application == "later"
    assert database.groups == [["first"], ["later"]]

"""Values are read once for many who ask, and again after an error."""

import threading

import pytest

from processes.ttl_cache import KeyedTtlCache, TtlCache


def test_an_error_comes_through_and_is_not_kept() -> None:
    answers: list[object] = [ValueError("away"), "back"]

    def read() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cached = TtlCache(read, ttl_s=1000.0)
    with pytest.raises(ValueError, match="away"):
        cached.get()
    assert cached.get() == "back"


def test_who_asks_while_it_is_read_waits_for_the_same_value() -> None:
    asked, go_on = threading.Event(), threading.Event()
    reads: list[int] = []

    def read() -> int:
        reads.append(1)
        asked.set()
        assert go_on.wait(10)
        return len(reads)

    cached = TtlCache(read, ttl_s=1000.0)
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(cached.get())) for _ in range(3)]
    threads[0].start()
    assert asked.wait(10)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert got == [1, 1, 1]


def test_what_takes_long_to_read_is_read_less_often() -> None:
    started = threading.Event()
    reads: list[int] = []

    def read() -> int:
        reads.append(1)
        started.wait(0.001)  # nobody sets it: it takes a millisecond
        return len(reads)

    often, seldom = TtlCache(read, ttl_s=-1.0), TtlCache(read, ttl_s=-1.0, spacing=10_000.0)
    assert [often.get(), often.get()] == [1, 2]
    assert [seldom.get(), seldom.get()] == [3, 3]
    seldom.forget()
    assert seldom.get() == 4


def test_each_key_has_its_value_which_is_read_once_while_it_is_fresh() -> None:
    reads = iter([1, 2])
    cached = KeyedTtlCache[str, int](lambda _: next(reads), ttl_s=1.0)
    assert [cached.get(key, now) for key, now in [("a", 7.0), ("b", 7.5), ("a", 8.0), ("b", 8.0)]] == [1, 2, 1, 2]


def test_what_a_key_does_not_have_yet_is_found_as_soon_as_it_has_it() -> None:
    reads = iter([None, 1])
    cached = KeyedTtlCache[str, int](lambda _: next(reads), ttl_s=1.0)
    assert [cached.get("a", 7.0), cached.get("a", 7.0)] == [None, 1]


def test_a_value_that_took_long_to_read_is_not_kept_for_the_next_interval() -> None:
    asked: list[str] = []

    def read(key: str) -> int:
        asked.append(key)
        if asked == ["slow"]:
            cached.get("other", 8.1)  # the next interval begins while the slow value is read
        return len(asked)

    cached = KeyedTtlCache[str, int](read, ttl_s=1.0)
    assert [cached.get("slow", now) for now in (7.0, 8.2)] == [2, 3]

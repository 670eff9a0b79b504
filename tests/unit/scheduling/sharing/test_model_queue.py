"""What waits for a model is summed up, background requests apart from the others."""

import math

from scheduling.sharing.background.deadlines import Work
from scheduling.sharing.model_queue import ModelQueue
from tests.unit.scheduling.scheduling_builders import a_line, a_request


def test_the_sums_follow_what_comes_and_goes() -> None:
    queue = ModelQueue()
    queue.add(a_request("a", at=5.0, length=30, predicted=7))
    queue.add(a_request("b", at=3.0, length=20, predicted=9))
    assert queue.work(False) == Work(2, 50, 16, 9)
    assert queue.oldest_at(False) == 3.0
    assert queue.remove("b")
    assert (queue.work(False).requests, queue.oldest_at(False)) == (1, 5.0)
    assert not queue.remove("b")
    assert queue.remove("a")
    assert (queue.work(False), queue.oldest_at(False)) == (Work(), math.inf)


def test_each_request_knows_the_work_that_waited_when_it_came_unless_it_comes_back_unfinished() -> None:
    queue = ModelQueue()
    queue.add(a_request("a", length=30, predicted=7))
    queue.add(a_request("b"))
    queue.add(a_request("back", generated=3))
    queue.remove("a")
    assert {one.request.id: one.ahead.prefill for one in queue.waiting} == {"b": 30, "back": 0}


def test_background_requests_count_apart() -> None:
    queue = ModelQueue()
    queue.add(a_line("line", at=1.0))
    assert (queue.work(False).requests, queue.work(True).requests) == (0, 1)
    assert (queue.oldest_at(False), queue.oldest_at(True)) == (math.inf, 1.0)


def test_a_request_that_comes_again_replaces_the_earlier_one() -> None:
    queue = ModelQueue()
    queue.add(a_request("a", predicted=7))
    queue.add(a_request("a", predicted=9))
    assert queue.work(False) == Work(1, 10, 9, 9)


def test_requests_that_came_and_went_take_no_memory_although_nobody_asks_for_the_oldest() -> None:
    queue = ModelQueue()
    queue.add(a_request("oldest", at=1.0))
    for number in range(1000):
        queue.add(a_request(str(number), at=float(number + 2)))
        queue.remove(str(number))
    assert len(queue._arrivals[False]) < 100
    assert queue.oldest_at(False) == 1.0

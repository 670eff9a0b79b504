from scheduling.arrival_queue import ArrivalQueue
from tests.unit.scheduling.scheduling_builders import a_request


def test_requests_leave_in_order_of_arrival_then_id() -> None:
    queue = ArrivalQueue()
    for name, at in [("c", 2.0), ("b", 1.0), ("a", 1.0)]:
        queue.add(a_request(name, at))
    assert [request.id for request in queue] == ["a", "b", "c"]
    assert [request.id for request in queue.take(2)] == ["a", "b"]
    assert len(queue) == 1


def test_one_that_comes_back_keeps_its_place() -> None:
    queue = ArrivalQueue()
    queue.add(a_request("early", 1.0))
    (early,) = queue.take(1)
    queue.add(a_request("late", 2.0))
    queue.add(early)
    assert [request.id for request in queue.take(5)] == ["early", "late"]


def test_a_discarded_request_is_never_taken() -> None:
    queue = ArrivalQueue()
    queue.add(a_request("a", 1.0))
    queue.add(a_request("b", 2.0))
    assert queue.discard("a")
    assert not queue.discard("a")
    assert [request.id for request in queue.take(5)] == ["b"]
    assert queue.peek() is None


def test_one_that_was_discarded_and_came_back_is_there_once() -> None:
    queue = ArrivalQueue()
    queue.add(a_request("a"))
    queue.discard("a")
    queue.add(a_request("b", 1.0))
    assert [request.id for request in queue] == ["b"]
    queue.add(a_request("a"))
    assert [request.id for request in queue] == ["a", "b"]
    assert [request.id for request in queue.take(5)] == ["a", "b"]

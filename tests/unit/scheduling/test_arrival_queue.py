import pickle

from scheduling.arrival_queue import ArrivalQueue
from tests.unit.scheduling.scheduling_builders import a_request


def test_requests_leave_in_order_of_arrival_then_id() -> None:
    queue = ArrivalQueue()
    for name, at in [("c", 2.0), ("b", 1.0), ("a", 1.0)]:
        queue.add(a_request(name, at))
    assert [request.id for request in queue] == ["a", "b", "c"]
    assert [request.id for request in queue.take(2)] == ["a", "b"]
    assert len(queue) == 1


def test_another_key_decides_and_one_that_comes_back_with_another_key_has_a_new_place() -> None:
    queue = ArrivalQueue(lambda request: (-request.predicted,))
    for name, predicted in [("short", 5), ("long", 50), ("changed", 500)]:
        queue.add(a_request(name, predicted=predicted))
    assert queue.discard("changed")
    queue.add(a_request("changed", predicted=10))
    assert [request.id for request in queue] == ["long", "changed", "short"]
    assert [request.id for request in queue.take(3)] == ["long", "changed", "short"]


def test_a_new_key_orders_those_that_wait_and_those_that_come() -> None:
    queue = ArrivalQueue()
    for name, predicted in [("long", 50), ("gone", 1), ("short", 5)]:
        queue.add(a_request(name, predicted=predicted))
    queue.discard("gone")
    queue.sort_by(lambda request: (request.predicted,))
    queue.add(a_request("middle", predicted=20))
    assert [request.id for request in queue.take(5)] == ["short", "middle", "long"]


def test_one_that_comes_back_keeps_its_place() -> None:
    queue = ArrivalQueue()
    queue.add(a_request("early", 1.0))
    (early,) = queue.take(1)
    queue.add(a_request("late", 2.0))
    queue.add(early)
    assert [request.id for request in queue.take(5)] == ["early", "late"]


def test_one_that_was_discarded_and_came_back_is_there_once() -> None:
    queue = ArrivalQueue()
    queue.add(a_request("a"))
    queue.discard("a")
    queue.add(a_request("b", 1.0))
    assert [request.id for request in queue] == ["b"]
    queue.add(a_request("a"))
    assert [request.id for request in queue] == ["a", "b"]
    assert [request.id for request in queue.take(5)] == ["a", "b"]


def test_a_queue_is_no_larger_for_the_requests_that_came_and_went() -> None:
    queue = ArrivalQueue()
    queue.add(a_request("stays", 0.0))  # so that nothing outdated comes first
    size = len(pickle.dumps(queue))
    for number in range(10_000):
        queue.add(a_request("comes and goes", 1.0))
        queue.add(a_request(str(number), 2.0))
        assert queue.discard("comes and goes")
        assert queue.discard(str(number))
    assert [request.id for request in queue] == ["stays"]
    assert len(pickle.dumps(queue)) < 20 * size

from scheduling.arrival_queue import ArrivalQueue, WorkerQueues
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


def test_requests_are_dealt_out_in_turn() -> None:
    queues = WorkerQueues(round_robin=True)
    for number in range(5):
        queues.add(a_request(str(number), at=number))
    queues.set_workers(["x", "y"])
    assert [request.id for request in queues.queue_for("x")] == ["0", "2", "4"]
    assert [request.id for request in queues.queue_for("y")] == ["1", "3"]
    assert [request.id for request in queues] == ["0", "1", "2", "3", "4"]


def test_the_requests_of_a_worker_that_is_gone_are_dealt_out_again() -> None:
    queues = WorkerQueues(round_robin=True)
    for number in range(4):
        queues.add(a_request(str(number), at=number))
    queues.set_workers(["x", "y"])
    queues.set_workers(["y"])
    assert [request.id for request in queues.queue_for("y")] == ["0", "1", "2", "3"]
    assert len(queues) == 4


def test_a_request_can_be_discarded_dealt_or_not() -> None:
    queues = WorkerQueues(round_robin=True)
    queues.add(a_request("dealt"))
    queues.set_workers(["x"])
    queues.add(a_request("undealt"))
    assert queues.discard("dealt")
    assert queues.discard("undealt")
    assert not queues.discard("undealt")
    assert len(queues) == 0


def test_one_queue_serves_every_worker() -> None:
    queues = WorkerQueues(round_robin=False)
    queues.add(a_request("a"))
    queues.set_workers(["x", "y"])
    assert queues.queue_for("x") is queues.queue_for("y")
    assert [request.id for request in queues] == ["a"]
    assert queues.discard("a")
    assert len(queues) == 0

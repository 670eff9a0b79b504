from scheduling.offloading import LeastLoaded, RoundRobin, RoundRobinQueues, SharedQueue
from scheduling.policy import Worker
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_memory, a_request, a_worker


def test_requests_are_dealt_out_in_turn() -> None:
    queues = RoundRobinQueues()
    for number in range(5):
        queues.add(a_request(str(number), at=number))
    queues.set_workers(["x", "y"])
    assert [request.id for request in queues.queue_of("x")] == ["0", "2", "4"]
    assert [request.id for request in queues.queue_of("y")] == ["1", "3"]
    assert [request.id for request in queues] == ["0", "1", "2", "3", "4"]


def test_the_requests_of_a_worker_that_is_gone_are_dealt_out_again() -> None:
    queues = RoundRobinQueues()
    for number in range(4):
        queues.add(a_request(str(number), at=number))
    queues.set_workers(["x", "y"])
    queues.set_workers(["y"])
    assert [request.id for request in queues.queue_of("y")] == ["0", "1", "2", "3"]
    assert len(queues) == 4


def test_a_request_can_be_discarded_dealt_or_not() -> None:
    queues = RoundRobinQueues()
    queues.add(a_request("dealt"))
    queues.set_workers(["x"])
    queues.add(a_request("undealt"))
    assert queues.discard("dealt")
    assert queues.discard("undealt")
    assert not queues.discard("undealt")
    assert len(queues) == 0


def test_one_queue_serves_every_worker() -> None:
    queues = SharedQueue()
    queues.add(a_request("a"))
    queues.set_workers(["x", "y"])
    assert queues.queue_of("x") is queues.queue_of("y")
    assert [request.id for request in queues] == ["a"]
    assert queues.discard("a")
    assert len(queues) == 0


def test_batches_go_round_and_pass_over_a_worker_that_is_too_small() -> None:
    in_turn = RoundRobin().among([a_worker("x", 1000), a_worker("small", 50), a_worker("z", 1000)])
    names = [in_turn.place(4, 10, 10)[0].name for _ in range(4)]  # 4 · (10 + 10) = 80 tokens
    assert names == ["x", "z", "z", "x"]
    assert in_turn.place(4, 1000, 10)[0].name == "z"  # fits nowhere; of the largest the first in turn


def test_a_batch_goes_to_the_least_loaded_worker() -> None:
    x = Worker("x", a_memory(1000), FLAT, busy_s=3.0, queued=1)
    y = Worker("y", a_memory(1000), FLAT, busy_s=1.0, queued=1)
    loads = LeastLoaded([x, y])
    # a batch of one row takes 0.01 + 10 · 0.1 = 1.01 s: y 2.01, y 3.02, x 4.01
    assert [loads.place(1, 10, 10)[0].name for _ in range(3)] == ["y", "y", "x"]
    assert round(loads.least_load_s, 2) == 3.02


def test_on_an_unequal_fleet_a_batch_goes_where_it_ends_first_and_fits() -> None:
    slow = Worker("slow", a_memory(1000), FLAT)
    fast = Worker("fast", a_memory(100), SLOPED, busy_s=0.1, queued=1)
    loads = LeastLoaded([slow, fast])
    assert loads.place(1, 10, 10)[0].name == "fast"  # 0.1 + 0.49 s against 1.01 s
    assert loads.place(6, 10, 10)[0].name == "slow"  # 120 tokens
    assert loads.place(60, 10, 10)[0].name == "slow"  # fits nowhere; the largest tries

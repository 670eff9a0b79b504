from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policy import WaitingBatch, Worker
from scheduling.request import Request
from tasks.planning.queue_description import MOST_IDS, describe_queue

CURVES = ServingCurves((0, 0, 0, 1), (0, 0, 0, 1))


def batch(first: int, size: int, estimated_s: float) -> WaitingBatch:
    requests = tuple(Request(f"r{n}", 0.0, 5, 10, 5, 5) for n in range(first, first + size))
    return WaitingBatch(requests, 5, 5, estimated_s, 1.0, sealed=False)


def worker(name: str, busy_s: float) -> Worker:
    return Worker(name, KvMemory(100, 1), CURVES, busy_s=busy_s)


def test_each_batch_starts_on_the_worker_that_is_free_first():
    batches, backlog_s = describe_queue(
        [batch(0, 2, 4.0), batch(2, 1, 1.0), batch(3, 1, 1.0)], 4, [worker("a", 1.0), worker("b", 2.0)]
    )
    # a is free at 1 and takes 4 s until 5; b is free at 2, then at 3, then at 4
    assert [described.starts_in_s for described in batches] == [1.0, 2.0, 3.0]
    assert backlog_s == 4.0


def test_without_a_worker_batches_follow_each_other():
    batches, backlog_s = describe_queue([batch(0, 1, 2.0), batch(1, 1, 3.0)], 2, [])
    assert [described.starts_in_s for described in batches] == [0.0, 2.0]
    assert backlog_s == 5.0


def test_only_the_front_is_read_and_the_rest_is_taken_to_need_as_long_a_request():
    def endless():
        first = 0
        while True:
            yield batch(first, 400, 2.0)
            first += 400

    batches, backlog_s = describe_queue(endless(), 20_000, [worker("a", 0.0)])
    assert [described.size for described in batches] == [400, 400, 400]
    assert sum(len(described.ids) for described in batches) == MOST_IDS
    # 3 batches of 2 s hold 1,200 requests, so 18,800 more take 94 s
    assert backlog_s == 6.0 + 94.0


def test_a_batch_says_what_it_wastes_and_how_much_memory_it_may_fill():
    requests = (Request("a", 0.0, 5, 10, 5, 5), Request("b", 0.0, 3, 10, 4, 4))
    (described,), _ = describe_queue([WaitingBatch(requests, 5, 5, 1.0, 1.0, sealed=False)], 2, [worker("a", 0.0)])
    assert described.memory_share == 0.2  # two rows of 5 + 5 tokens in 100
    # b reads (5 + 1)·5 + 5·6/2 = 45, of which 4·3 + 4·3/2 = 18 serve its answer
    assert described.wasted == 45 - 18
    (alone,), _ = describe_queue([batch(0, 1, 2.0)], 1, [])
    assert alone.memory_share is None

from hypothesis import given
from hypothesis import strategies as st

from scheduling.adaptive_batching import AdaptiveBatch, AdaptiveBatcher
from scheduling.batch_order import BatchScheduler
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_request, examples


def a_table(batcher: AdaptiveBatcher, by_response_ratio: bool = True) -> BatchScheduler:
    table = BatchScheduler(by_response_ratio)
    update(table, batcher)
    return table


def update(table: BatchScheduler, batcher: AdaptiveBatcher) -> None:
    table.update(batcher.changed, batcher.batches)
    batcher.changed = set()


def chosen(
    table: BatchScheduler, now: float, capacity: float = 1e9, costs: ServingCurves = FLAT
) -> AdaptiveBatch | None:
    choice = table.next_batch(costs, KvMemory(int(capacity), 1), now)
    return choice.batch if choice else None


def test_without_response_ratios_the_earliest_goes_first() -> None:
    batcher = AdaptiveBatcher(0)
    long = batcher.add(a_request("long", at=0.0, predicted=100))
    batcher.add(a_request("short", at=5.0, predicted=10))
    assert chosen(a_table(batcher, by_response_ratio=False), 6.0) is long


def test_equal_priorities_go_by_arrival_then_by_creation() -> None:
    batcher = AdaptiveBatcher(0)
    first = batcher.add(a_request("b"))
    second = batcher.add(a_request("a"))
    table = a_table(batcher)
    assert chosen(table, 0.0) is first
    batcher.take(first)
    update(table, batcher)
    assert chosen(table, 0.0) is second


def test_a_batch_that_came_and_went_between_two_decisions_leaves_no_trace() -> None:
    batcher = AdaptiveBatcher(0)
    batcher.take(batcher.add(a_request("a")))
    assert chosen(a_table(batcher), 0.0) is None


def test_estimates_follow_a_batch_that_grows_and_costs_that_change() -> None:
    batcher = AdaptiveBatcher(50_000)
    batcher.add(a_request("a"))
    table = a_table(batcher)
    choice = table.next_batch(FLAT, None, 0.0)
    assert choice is not None
    assert choice.estimated_s == 1.01  # 10 ms + 10 · 100 ms
    batcher.add(a_request("b", predicted=20))
    update(table, batcher)
    choice = table.next_batch(FLAT, None, 0.0)
    assert choice is not None
    assert choice.estimated_s == 2.02  # 20 ms + 20 · 100 ms
    table.keep_estimates_of([SLOPED])
    faster = ServingCurves((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.01))
    choice = table.next_batch(faster, None, 0.0)
    assert choice is not None
    assert choice.estimated_s == 0.2


REQUESTS = st.lists(
    st.tuples(st.floats(0, 50), st.integers(1, 300), st.integers(1, 300), st.integers(0, 40)), min_size=1, max_size=150
)


@examples(25)
@given(REQUESTS, st.integers(0, 2_000), st.floats(50, 100))
def test_choices_equal_response_ratios_worked_out_one_by_one(
    requests: list[tuple[float, int, int, int]], threshold: int, now: float
) -> None:
    batcher, table = AdaptiveBatcher(threshold), BatchScheduler(True)
    for number, (at, length, predicted, capacity) in enumerate(requests):
        batcher.add(a_request(str(number), at, length, predicted))
        if capacity < 10:  # decisions between arrivals, so that rows are used again
            update(table, batcher)
            if batch := chosen(table, now):
                batcher.take(batch)
    update(table, batcher)
    waiting = list(batcher.batches.values())

    def ratio(batch: AdaptiveBatch) -> float:
        estimated_s = SLOPED.serve_s(len(batch.requests), batch.length, batch.generation_length)
        return 1 + (now - batch.arrived_at) / estimated_s

    listed = table.serving_order(SLOPED, now)
    assert sorted(batch.number for batch, _, _ in listed) == sorted(batcher.batches)
    ratios = [ratio for _, _, ratio in listed]
    assert ratios == sorted(ratios, reverse=True)
    if waiting:
        batch = chosen(table, now, costs=SLOPED)
        assert batch is listed[0][0]
        assert abs(ratio(batch) - max(map(ratio, waiting))) < 1e-9

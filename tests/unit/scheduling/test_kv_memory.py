import pytest

from scheduling.kv_memory import KvMemory


def test_memory_is_counted_in_padded_tokens() -> None:
    memory = KvMemory(theta_bytes=1000, delta_bytes=10)
    assert memory.capacity_tokens == 100
    assert memory.batch_bytes(2, 30, 20) == 1000  # 2 · 50 tokens · 10 bytes
    assert memory.fits(2, 30, 20)
    assert not memory.fits(2, 30, 21)


def test_paged_memory_is_the_sum_over_rows_and_half_a_block_for_each() -> None:
    assert KvMemory(1000, 1).rows_tokens(3, 50, 90) == 150
    assert KvMemory(1000, 1, paged=True).rows_tokens(3, 50, 90) == 90
    assert KvMemory(1000, 1, paged=True, block_tokens=17).rows_tokens(3, 50, 90) == 90 + 3 * 8


def test_a_worker_may_take_fewer_rows_than_its_memory_holds() -> None:
    memory = KvMemory(1000, 1, max_rows=4)
    assert (memory.fits(4, 10, 10), memory.fits(5, 10, 10)) == (True, False)
    assert (memory.fixed_batch_size(50, 50), KvMemory(1000, 1).fixed_batch_size(50, 50)) == (4, 10)


@pytest.mark.parametrize(("block_tokens", "max_rows"), [(0, 1), (1, 0)])
def test_blocks_without_tokens_and_workers_without_rows_are_refused(block_tokens: int, max_rows: int) -> None:
    with pytest.raises(ValueError, match="a block has a token"):
        KvMemory(1, 1, True, block_tokens, max_rows)


@pytest.mark.parametrize(("theta", "delta"), [(-1, 1), (1, 0)])
def test_impossible_memory_is_refused(theta: int, delta: int) -> None:
    with pytest.raises(ValueError, match="Θ must not be negative"):
        KvMemory(theta, delta)

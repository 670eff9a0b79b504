import pytest

from scheduling.kv_memory import KvMemory


def test_memory_is_counted_in_padded_tokens() -> None:
    memory = KvMemory(theta_bytes=1000, delta_bytes=10)
    assert memory.capacity_tokens == 100
    assert memory.batch_bytes(2, 30, 20) == 1000  # 2 · 50 tokens · 10 bytes
    assert memory.fits(2, 30, 20)
    assert not memory.fits(2, 30, 21)


@pytest.mark.parametrize(("theta", "delta"), [(-1, 1), (1, 0)])
def test_impossible_memory_is_refused(theta: int, delta: int) -> None:
    with pytest.raises(ValueError, match="Θ must not be negative"):
        KvMemory(theta, delta)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.published_costs import CHATGLM_6B_V100, CHATGLM_6B_V100_4BIT, LLAMA2_13B_A100_HF, VICUNA_7B_A100
from tests.unit.scheduling.scheduling_builders import examples

CURVES = ServingCurves(prefill=(0.001, 0.01, 0.002, 0.5), decode=(0.0001, 0.002, 0.0003, 0.05))


def test_serving_time_is_prefill_and_the_sum_over_iterations() -> None:
    # Eq. (3), N = 2, L = 10: 0.001·20 + 0.01·2 + 0.002·10 + 0.5 = 0.56
    assert CURVES.prefill_s(2, 10) == pytest.approx(0.56)
    # Eq. (4) at l = 11, 12, 13: 0.0002·l + 0.004 + 0.0003·l + 0.05 = 0.054 + 0.0005·l; the sum is 0.162 + 0.018 = 0.18
    assert CURVES.serve_s(2, 10, 3) == pytest.approx(0.56 + 0.18)


@examples(20)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 2048), st.integers(1, 2048)), max_size=20))
def test_many_batches_are_estimated_as_one_by_one(batches: list[tuple[int, int, int]]) -> None:
    sizes, lengths, generations = np.array(batches, dtype=np.int64).reshape(-1, 3).T
    one_by_one = [CURVES.serve_s(*batch) for batch in batches]
    assert CURVES.serve_many_s(sizes, lengths, generations) == pytest.approx(one_by_one)


def test_a_fitted_curve_never_gives_a_negative_time() -> None:
    falling = ServingCurves((0.0, 0.0, 0.0, -1.0), (0.0, 0.0, 0.0, -1.0))
    assert falling.serve_s(1, 1, 5) == 0.0
    ones = np.ones(1, dtype=np.int64)
    assert falling.serve_many_s(ones, ones, ones)[0] == 0.0


def test_the_case_study_of_figure_6_comes_out_of_the_v100_fit() -> None:
    curves = CHATGLM_6B_V100.curves
    assert 3 * curves.serve_s(7, 1000, 1000) == pytest.approx(242, rel=0.02)
    assert curves.serve_s(3, 1000, 1000) + curves.serve_s(18, 10, 10) == pytest.approx(60, rel=0.025)


def test_the_fixed_batch_sizes_of_the_paper_come_out_of_equation_1() -> None:
    assert CHATGLM_6B_V100.memory.fixed_batch_size(1024, 1024) == 7
    assert CHATGLM_6B_V100_4BIT.memory.fixed_batch_size(1024, 1024) == 10
    assert KvMemory(1, 1).fixed_batch_size(1024, 1024) == 1


def test_figure_11_comes_out_of_the_fit_of_llama2_13b() -> None:
    curves = LLAMA2_13B_A100_HF.curves
    assert curves.serve_s(16, 1024, 128) == pytest.approx(13.5, rel=0.01)
    assert curves.serve_s(15, 10, 128) + curves.serve_s(1, 1024, 128) == pytest.approx(7.6, rel=0.01)


def test_vanilla_throughput_of_table_4_comes_out_of_the_fit_of_vicuna_7b() -> None:
    assert 16 / VICUNA_7B_A100.curves.serve_s(16, 60, 377) == pytest.approx(1.22, rel=0.02)


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

import pytest

from benchmarks.published_costs import (
    CHATGLM_6B_V100,
    CHATGLM_6B_V100_4BIT,
    LLAMA2_13B_A100_HF,
    VICUNA_7B_A100,
)
from scheduling.kv_memory import KvMemory


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

"""Which phases of `benchmarks.gpu` run, and what is kept of one that fails."""

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.gpu.__main__ import chosen, told
from benchmarks.gpu.card import copied_bytes_per_s
from benchmarks.gpu.field_shapes import lengths
from benchmarks.gpu.live_policies import token_bytes
from benchmarks.gpu.packages import needed
from benchmarks.gpu.phase_plan import PHASES
from benchmarks.gpu.right_answers import compared
from benchmarks.gpu.run_phase import recorded
from benchmarks.gpu.step_times import prefill_operations
from benchmarks.harness import Results
from settings import BUNDLED_MODEL


def names(*args) -> list[str]:
    return [phase.name for phase in chosen(*args)]


def test_a_run_goes_on_with_a_phase_and_a_small_one_starts_few_services():
    assert names(None, (), False) == [phase.name for phase in PHASES]
    assert names("families", (), False) == ["families", "ways"]
    assert names(None, (), True).count("live-magnus") == 0
    assert names("ways", ("steps", "card"), True) == ["card", "steps"]


def test_each_phase_has_a_budget_of_half_a_minute_to_two():
    assert all(30 <= phase.budget_s <= 120 for phase in PHASES)


def test_an_error_is_kept_with_its_traceback_and_counted(tmp_path: Path):
    results = Results.at(tmp_path / "steps.json")
    parts = {"wrong": recorded(lambda: 1 / 0), "right": recorded(lambda: {"ms": 2.0})}
    results.write({"parts": parts, "left_out": ["late"], "seconds": 3.2})
    kept = json.loads((tmp_path / "steps.json").read_text())["figures"]["parts"]
    assert kept["right"]["figures"] == {"ms": 2.0}
    assert "test_phases.py" in kept["wrong"]["error"]
    line, errors = told(tmp_path / "steps.json", "killed after 120 s")
    assert errors == 2
    assert line.splitlines()[0] == "2 parts in 3 s"
    assert "left out for lack of time: late" in line
    assert "wrong: ZeroDivisionError" in line


def test_a_phase_that_wrote_nothing_is_an_error(tmp_path: Path):
    assert told(tmp_path / "card.json", "its process ended with 1")[1] == 1


def test_answers_are_compared_as_far_as_they_are_certain():
    found = compared([(1, 2, 3), (1, 9, 3)], [(1, 2), (1, 2, 3)])
    assert found == {"equal": 1, "of": 2, "tokens": 5, "equal_tokens": 0.6}


def test_a_prompts_operations_are_those_of_its_linear_layers_and_of_half_of_its_attention():
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, head_dim=4
    )
    # two operations a weight: four projections of 8 x 8 and three of 8 x 16 in each of two layers, no output layer;
    # scores and weighted values, two operations for each pair of tokens and value, half of the pairs
    assert prefill_operations(LlamaForCausalLM(config), 10) == 2 * 10 * 2 * (4 * 64 + 3 * 128) + 2 * 2 * 2 * 8 * 100 / 2


def test_the_published_shapes_are_vllms_and_nano_vllms():
    vllm, nano = lengths(small=False)
    assert vllm == [(512, 128)] * 500
    assert len(nano) == 256
    assert all(100 <= length <= 1024 for pair in nano for length in pair)


def test_the_bundled_models_token_takes_its_keys_and_values_in_float32():
    assert token_bytes(BUNDLED_MODEL) == 3 * 2 * 4 * 32 * 4  # layers, keys and values, heads, dimensions, bytes


def test_the_wheels_are_all_that_the_service_needs_except_what_the_machine_has():
    found = needed(["celery>=5", "psycopg[binary]>=3", "scikit-learn>=1"], {"scikit-learn"})
    assert {"celery", "kombu", "billiard", "psycopg", "psycopg-binary"} <= found.keys()
    assert not {"scikit-learn", "numpy", "joblib", "psycopg-pool"} & found.keys()


def test_a_copy_is_measured():
    assert copied_bytes_per_s("cpu") == pytest.approx(1e10, rel=99)

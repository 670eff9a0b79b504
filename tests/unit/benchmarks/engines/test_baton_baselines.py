"""The baselines differ from our engine in what they cost, never in what they answer."""

import pytest
import torch

from benchmarks.engines.baton_baselines import BatonBaseline, PrefillDecode
from benchmarks.engines.compared_engines import Continuous, RunToCompletion, kv_budget_bytes
from benchmarks.engines.engine_workload import load_for_serving, random_model, sequences
from inference.local.loading.model_loading import LoadedModel
from inference.sequences import Sequence

LENGTHS = [(5, 9), (12, 2), (3, 4), (8, 6), (20, 3)]  # prompt tokens, generated tokens


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_for_serving(random_model("tiny", "cpu", torch.float32), "tiny")


@pytest.fixture(scope="module")
def prompts() -> list[Sequence]:
    return sequences(LENGTHS, vocabulary=512, seed=0)


def test_every_scheme_gives_the_same_answers(loaded, prompts):
    budget_bytes = kv_budget_bytes(loaded, 2, 24)
    expected = RunToCompletion(loaded, budget_bytes).serve(prompts, 1).answers
    assert [len(answer) for answer in expected.values()] == [answer for _, answer in LENGTHS]
    for make in (RunToCompletion, Continuous, PrefillDecode, BatonBaseline):
        assert make(loaded, budget_bytes).serve(prompts, 2).answers == expected


def test_a_batch_that_prompts_can_join_has_no_idle_rows_while_prompts_wait(loaded, prompts):
    static, continuous = (
        make(loaded, kv_budget_bytes(loaded, 2, 24)).serve(prompts, 2) for make in (RunToCompletion, Continuous)
    )
    # Batches (9, 2) and (4, 6) run 9 and 6 iterations while a prompt waits: 7 and 2 rows have finished before the last.
    assert (static.idle_rows, static.possible_rows) == (7 + 2, 2 * (9 + 6))
    assert continuous.idle_rows == 0

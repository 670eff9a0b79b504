"""What is measured on this machine: seconds of batches, and the number of threads."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inference.local import engine_profile
from inference.local.engine_profile import Grid, Measured, measure, worthwhile_threads
from inference.local.loading import model_loading
from tests.unit.inference.tiny_models import Letters


def test_a_profile_measures_what_the_budget_and_the_positions_allow(llama):
    grid = Grid(sizes=(1, 2, 8), lengths=(8, 40, 400), steps=3, repeats=2)
    measured = measure(llama.loaded, kv_budget_bytes=2 * 44 * llama.loaded.delta_bytes, grid=grid)
    assert [(size, length) for size, length, _ in measured.prefills] == [(1, 8), (2, 8), (1, 40), (2, 40)]
    assert [(size, cached) for size, cached, _ in measured.decode_steps] == [(1, 10), (2, 10), (1, 42), (2, 42)]
    assert all(seconds > 0 for _, _, seconds in (*measured.prefills, *measured.decode_steps))


def test_a_profile_ends_when_its_time_is_over(llama):
    measured = measure(llama.loaded, 2**20, Grid((1, 2, 4), (8, 16), steps=1, repeats=1), within_s=0.0)
    assert len(measured.prefills) == len(measured.decode_steps) == 1


@pytest.fixture(autouse=True)
def _as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def measured_as(monkeypatch, step_s):
    """Let a step take what `step_s` says for torch's present number of threads; returns those that were measured."""
    asked = []

    def measure(loaded, kv_budget_bytes, grid):
        asked.append(torch.get_num_threads())
        return Measured((), ((8, 20.0, step_s[asked[-1]]),))

    monkeypatch.setattr(engine_profile, "measure", measure)
    return asked


@pytest.mark.parametrize(
    ("step_s", "threads"),
    [
        ({1: 0.0006, 2: 0.0005, 4: 0.00049}, 1),  # more gain little
        ({1: 0.004, 2: 0.0021, 4: 0.0020}, 2),  # two gain much, four no more
        ({1: 0.004, 2: 0.0021, 4: 0.0011}, 4),
        ({1: 0.0006, 2: 0.004, 4: 0.2}, 1),  # another process holds a core
    ],
)
def test_a_worker_takes_more_threads_only_where_they_make_a_step_shorter(monkeypatch, llama, step_s, threads):
    measured_as(monkeypatch, step_s)
    assert worthwhile_threads(llama.loaded, 2**22, most=4) == threads


@pytest.mark.parametrize(
    ("step_s", "threads"),
    [
        ({1: 0.055, 2: 0.050}, 2),  # SmolLM2 on a quiet machine: 2.73 and 2.93 requests/s
        ({1: 0.055, 2: 0.054}, 1),  # beside a neighbour that holds a core
        ({1: 0.131, 2: 2.8}, 1),  # beside several
    ],
)
def test_a_large_model_takes_a_thread_as_soon_as_it_shortens_a_step(monkeypatch, step_s, threads):
    measured_as(monkeypatch, step_s)
    monkeypatch.setattr(model_loading, "fastest_form", lambda weight, packable: "packed")
    loaded = model_loading.prepare_model(model_of_smollm2s_shapes(), Letters(), "large")
    assert loaded.parameters == 53_092_800  # what is left of them after packing is the embedding's 28 million
    assert worthwhile_threads(loaded, 2**22, most=2) == threads


def model_of_smollm2s_shapes():
    """SmolLM2-135M with 7 of its 30 layers; its weights are zero, which takes no time."""
    shapes = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 7}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**shapes, **heads, tie_word_embeddings=True, max_position_embeddings=64))
    model.to_empty(device="cpu").tie_weights()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.zero_()
    return model


def test_a_worker_without_memory_for_some_rows_takes_one_thread(llama):
    assert worthwhile_threads(llama.loaded, llama.loaded.delta_bytes, most=4) == 1

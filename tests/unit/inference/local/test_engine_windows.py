"""Rows of models with windows: how many fit, that they take what they hold, and that no answer changes."""

from functools import cache

import pytest

from inference.engine_errors import OutOfMemory
from inference.local.engine import Engine
from inference.local.loading.model_loading import LoadedModel, prepare_model
from inference.sequences import Sequence
from tests.models.tiny_families import VOCABULARY, WINDOW, Family, tiny_model
from tests.unit.inference.tiny_models import Letters, drain

MISTRAL, GEMMA = ("mistral", {}), ("gemma3_text", {"num_hidden_layers": 6, "tie_word_embeddings": False})
PROMPT, ANSWER = 4 * WINDOW - 8, 8
ROWS_BEFORE = 4  # of PROMPT + ANSWER tokens that fit if all layers hold all of them


@cache
def loaded(model_type: str) -> LoadedModel:
    """A tiny model whose layers, or five of six, have windows."""
    options = dict([MISTRAL, GEMMA])[model_type]
    return prepare_model(tiny_model(Family(model_type, model_type, options)), Letters(), model_type)


def sequence(number: int) -> Sequence:
    """Each has another prompt."""
    return Sequence(str(number), tuple((number + 7 * at) % (VOCABULARY - 8) + 8 for at in range(PROMPT)), ANSWER)


def alone(model: LoadedModel, number: int) -> tuple[int, ...]:
    """What the model answers to one prompt."""
    engine = Engine(model, (PROMPT + ANSWER) * model.delta_bytes)
    engine.insert([sequence(number)])
    return drain(engine)[str(number)].generated_ids


@pytest.mark.parametrize(("model_type", "rows"), [("mistral", 16), ("gemma3_text", 10)])
def test_more_rows_fit_as_layers_with_windows_hold_their_windows(model_type, rows):
    model = loaded(model_type)
    budget = ROWS_BEFORE * (PROMPT + ANSWER) * model.delta_bytes
    engine = Engine(model, budget, block_tokens=4)
    for first in (0, rows):  # the second time in memory that other rows have left
        for number in range(first, first + rows):
            engine.insert([sequence(number)])
        done = drain(engine)
        assert engine.figures.size == rows
        assert 0.9 * budget < engine.figures.peak_kv_bytes <= budget
        for number in range(first, first + rows, 3):
            assert done[str(number)].generated_ids == alone(model, number)
    with pytest.raises(OutOfMemory):
        engine.insert([sequence(number) for number in range(rows + 2)])


def test_a_row_in_the_pool_holds_the_windows_of_layers_with_a_window():
    model = loaded("gemma3_text")
    engine = Engine(model, 3 * model.layout.row_bytes(PROMPT + ANSWER), prefill_tokens=5)
    engine.insert([sequence(0)])
    engine.insert([sequence(1)])
    for _ in range(3):
        engine.step()
    pooled = engine._joiners.pooled
    assert (pooled.prefilled, pooled.nbytes) == (15, model.layout.row_bytes(PROMPT))
    assert {side.shape[1] for layer in pooled.as_host_row() for side in layer} == {WINDOW, PROMPT}
    assert {name: row.generated_ids for name, row in drain(engine).items()} == {
        str(number): alone(model, number) for number in range(2)
    }

"""Rows of models with windows: how many fit, what they hold, and that each gets the answer that `generate` gives it."""

from functools import cache

import pytest

from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel, prepare_model
from tests.models.tiny_families import VOCABULARY, WINDOW, Family, tiny_model
from tests.models.ways_of_serving import ANSWER, Alone, answers_alone
from tests.unit.inference.tiny_models import Letters, drain

MISTRAL = Family("Mistral", "mistral")
GEMMA = Family("Gemma 3", "gemma3_text", {"num_hidden_layers": 6, "tie_word_embeddings": False})
LENGTH = 4 * WINDOW
ROWS_BEFORE = 4  # of LENGTH tokens that fit if all layers hold all of them


def prompt(number: int) -> tuple[int, ...]:
    """Each row has another prompt."""
    return tuple((number + 7 * at) % (VOCABULARY - 8) + 8 for at in range(LENGTH - ANSWER))


def sequence(number: int) -> DecodingRequest:
    """A row of LENGTH tokens at its end."""
    return DecodingRequest(str(number), prompt(number), ANSWER)


@cache
def known(model_type: str) -> tuple[LoadedModel, dict[int, Alone]]:
    """A tiny model whose layers, or five of six, have windows, and its answers to some prompts."""
    model = tiny_model(next(family for family in (MISTRAL, GEMMA) if family.model_type == model_type))
    numbers = [0, 1, 5, 19]
    alone = answers_alone(model, [prompt(number) for number in numbers])
    return prepare_model(model, Letters(), model_type), dict(zip(numbers, alone, strict=True))


def check(answers: dict[str, tuple[int, ...]], alone: dict[int, Alone]) -> None:
    """Compares with those answers that are known, up to the first token that rounding could change."""
    for number, one in alone.items():
        if str(number) in answers:
            assert answers[str(number)][: len(one.answer)] == one.answer


@pytest.mark.parametrize(("model_type", "rows"), [("mistral", 16), ("gemma3_text", 10)])
def test_more_rows_fit_as_layers_with_windows_hold_their_windows(model_type, rows):
    model, alone = known(model_type)
    budget = ROWS_BEFORE * LENGTH * model.delta_bytes
    engine = Engine(model, budget, EngineOptions(block_tokens=4))
    for first in (0, rows):  # the second time in memory that other rows have left
        for number in range(first, first + rows):
            engine.insert([sequence(number)])
        check({name: row.generated_ids for name, row in drain(engine).items()}, alone)
        assert engine.figures.size == rows
        assert 0.9 * budget < engine.figures.peak_kv_bytes <= budget
    with pytest.raises(OutOfMemory):
        engine.insert([sequence(number) for number in range(rows + 3)])


def test_a_prompt_computed_in_parts_attends_to_the_windows_of_layers_with_a_window():
    model, alone = known("gemma3_text")
    engine = Engine(model, 3 * model.layout.row_bytes(LENGTH), EngineOptions(prefill_tokens=5))
    engine.insert([sequence(0)])
    engine.insert([sequence(1)])
    for _ in range(3):
        engine.step()
    assert engine._batch.rows[1].joined == 15
    check({name: row.generated_ids for name, row in drain(engine).items()}, alone)

"""Joiners whose prompts are computed in parts between the steps of running rows, and get the same answers.

That is so where a pass cannot compute tokens of running rows and prompts together: here in GPT-2's rectangle.
"""

import pytest

from inference.engine_errors import OutOfMemory
from tests.unit.inference.recorded_passes import PIECE, alone, long_row, recorded_engine
from tests.unit.inference.tiny_models import drain


def test_running_rows_get_a_token_after_each_piece_of_a_joiners_prompt(apart):
    engine, decoder = recorded_engine(apart)
    engine.insert([long_row("joiner")])
    assert decoder.passes == []
    for piece in range(1, 6):
        assert engine.step() == []
        assert engine.rows == {"running": 2 + piece, "joiner": 0}
    engine.step()
    assert engine.rows == {"running": 8, "joiner": 2}
    assert decoder.passes == [(1, PIECE), (2, 1)] * 5 + [(1, 1), (2, 1)]  # the row that has not joined is dropped
    done = drain(engine)
    assert done["joiner"].generated_ids == alone(apart, long_row("joiner")).generated_ids
    assert done["running"].generated_ids == apart.pool[0].answer
    assert engine.figures.length == 5 * PIECE + 1


def test_without_running_rows_nobody_waits_and_joiners_are_prefilled_at_once(apart):
    engine, decoder = recorded_engine(apart)
    engine.insert([long_row("a"), long_row("b")])
    engine.step()
    engine.remove("running")
    decoder.passes.clear()
    engine.step()
    assert decoder.passes == [(1, 4 * PIECE + 1), (1, 5 * PIECE + 1), (2, 1)]


def test_a_device_out_of_memory_in_a_piece_loses_no_row(apart):
    engine, _ = recorded_engine(apart, fails_at={3})
    engine.insert([long_row("joiner")])
    engine.step()
    with pytest.raises(OutOfMemory):
        engine.step()
    done = drain(engine)
    assert done["joiner"].generated_ids == alone(apart, long_row("joiner")).generated_ids
    assert done["running"].generated_ids == apart.pool[0].answer

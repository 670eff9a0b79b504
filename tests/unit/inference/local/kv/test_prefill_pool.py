"""Joiners in the pool are prefilled in pieces between the steps of running rows, and get the same answers.

Rows are pooled where a pass cannot compute tokens of running rows and prompts together: here in GPT-2's rectangle.
"""

import pytest

from inference.engine_errors import OutOfMemory
from inference.local.engine import Engine
from tests.unit.inference.recorded_passes import PIECE, alone, long_row, recorded_engine
from tests.unit.inference.tiny_models import AMPLE, drain


def test_running_rows_get_a_token_after_each_piece_of_a_joiners_prompt(pooling):
    engine, decoder = recorded_engine(pooling)
    engine.insert([long_row("joiner")])
    assert decoder.passes == []
    for piece in range(1, 6):
        assert engine.step() == []
        assert engine.rows == {"running": 2 + piece, "joiner": 0}
    engine.step()
    assert engine.rows == {"running": 8, "joiner": 2}
    assert decoder.passes == [(1, PIECE), (1, 1)] * 5 + [(1, 1), (2, 1)]
    done = drain(engine)
    assert done["joiner"].generated_ids == alone(pooling, long_row("joiner")).generated_ids
    assert done["running"].generated_ids == pooling.pool[0].answer
    assert engine.figures.length == 5 * PIECE + 1


def test_joiners_that_come_one_by_one_share_the_tokens_of_a_step(pooling):
    engine, decoder = recorded_engine(pooling)
    for n in range(6):
        engine.insert([long_row(str(n), tokens=3)])
    engine.step()
    assert decoder.passes == [(2, 3), (1, 2), (3, 1)]
    decoder.passes.clear()
    engine.step()
    assert decoder.passes == [(1, 1), (2, 3), (1, 1), (6, 1)]


def test_without_running_rows_nobody_waits_and_joiners_are_prefilled_at_once(pooling):
    engine, decoder = recorded_engine(pooling)
    engine.insert([long_row("a"), long_row("b")])
    engine.step()
    engine.remove("running")
    decoder.passes.clear()
    engine.step()
    assert decoder.passes == [(1, 4 * PIECE + 1), (1, 5 * PIECE + 1), (2, 1)]


@pytest.mark.parametrize("leave", [Engine.remove, Engine.preempt])
def test_a_pooled_row_that_leaves_frees_its_memory(pooling, leave):
    engine, _ = recorded_engine(pooling)
    before = engine.kv_bytes
    engine.insert([long_row("joiner")])
    engine.step()
    assert engine.kv_bytes >= before + len(long_row("").prompt_ids) * pooling.loaded.delta_bytes
    left = leave(engine, "joiner")
    assert left.generated_ids == ()
    assert engine.kv_bytes == before
    assert drain(engine)["running"].generated_ids == pooling.pool[0].answer


def test_the_prompts_log_probabilities_are_those_of_a_whole_prefill(each_model):
    asked = each_model.pool[1].sequence("asked", prompt_logprobs=True, top_logprobs=2)
    whole = alone(each_model, asked)
    engine = Engine(each_model.loaded, AMPLE, prefill_tokens=3)
    engine.insert([each_model.pool[0].sequence("running")])
    engine.insert([asked])
    pieces = drain(engine)["asked"]
    assert pieces.generated_ids == whole.generated_ids
    assert [one.id for one in pieces.prompt_logprobs] == list(asked.prompt_ids)
    for one, other in zip(pieces.prompt_logprobs, whole.prompt_logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_device_out_of_memory_in_a_piece_loses_no_row(pooling):
    engine, _ = recorded_engine(pooling, fails_at={3})
    engine.insert([long_row("joiner")])
    engine.step()
    with pytest.raises(OutOfMemory):
        engine.step()
    done = drain(engine)
    assert done["joiner"].generated_ids == alone(pooling, long_row("joiner")).generated_ids
    assert done["running"].generated_ids == pooling.pool[0].answer

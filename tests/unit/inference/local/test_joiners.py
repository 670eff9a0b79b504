"""Rows that join while others run: parts of their prompts are computed in the passes of the running rows."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest
from inference.local.batch_rows import new_row
from inference.local.costs.cost_counters import StepLog
from inference.local.costs.pass_costs import FEWEST_PREFILLED
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.joiners import PIECE_TOKENS
from inference.local.loading.model_loading import prepare_model
from inference.local.pass_tokens import prompt_parts
from request_body import Sampling
from tests.unit.inference.recorded_passes import PIECE, Recorded, alone, long_row, recorded_engine
from tests.unit.inference.tiny_models import AMPLE, MAKERS, MARGIN, Letters, answered_alone, drain, known


@pytest.fixture(params=["endless", "apart"])
def either(request):
    """A model whose joiners share the rows' passes, and one whose joiners are computed apart."""
    return request.getfixturevalue(request.param)


def test_each_pass_computes_a_token_of_running_rows_and_a_part_of_a_joiners_prompt(endless):
    engine, decoder = recorded_engine(endless)
    engine.insert([long_row("joiner")])
    assert decoder.passes == []
    for part in range(1, 6):
        assert engine.step() == []
        assert engine.rows == {"running": 2 + part, "joiner": 0}
    engine.step()
    assert engine.rows == {"running": 8, "joiner": 1}
    engine.step()
    assert decoder.passes == [(1 + PIECE, 1)] * 5 + [(2, 1), (2, 1)]
    done = drain(engine)
    assert done["joiner"].generated_ids == alone(endless, long_row("joiner")).generated_ids
    assert done["running"].generated_ids == endless.pool[0].answer
    assert engine.figures.length == 5 * PIECE + 1
    assert engine.figures.invalid_tokens == engine.figures.pad_tokens == 0


def test_joiners_share_a_pass_and_the_last_of_them_goes_on_in_the_next(endless):
    engine, decoder = recorded_engine(endless)
    for n in range(6):
        engine.insert([long_row(str(n), tokens=3)])
    engine.step()
    assert list(engine.rows.values()) == [3, 1, 1, 0, 0, 0, 0]
    engine.step()
    assert list(engine.rows.values()) == [4, 2, 2, 1, 1, 1, 0]
    assert decoder.passes == [(1 + PIECE, 1), (3 + PIECE, 1)]


def test_without_running_rows_joiners_are_prefilled_at_once(endless):
    engine, decoder = recorded_engine(endless)
    engine.insert([long_row("a"), long_row("b")])
    engine.remove("running")
    engine.step()
    assert decoder.passes == [(2, 5 * PIECE + 1), (2, 1)]


def test_without_a_setting_the_measured_costs_bound_a_part(endless):
    engine = Engine(endless.loaded, AMPLE, EngineOptions(prefill_tokens=None))
    engine.insert([endless.pool[0].sequence("running")])
    engine.insert([long_row("joiner", tokens=100)])
    engine.step()
    assert engine.rows == {"running": 2, "joiner": 0}
    assert engine._batch.rows[1].joined == FEWEST_PREFILLED  # nothing is known before the first pass


@pytest.mark.parametrize("leave", [Engine.remove, Engine.preempt])
def test_a_row_that_leaves_before_it_has_joined_frees_its_memory_and_can_come_again(endless, leave):
    engine, _ = recorded_engine(endless)
    before = engine.kv_bytes
    engine.insert([long_row("joiner")])
    engine.step()
    assert engine.kv_bytes >= before + len(long_row("").prompt_ids) * endless.loaded.delta_bytes
    assert leave(engine, "joiner").generated_ids == ()
    engine.step()
    assert engine.kv_bytes <= before + 4 * endless.loaded.delta_bytes  # of the running row, which has grown
    engine.insert([long_row("joiner")])
    done = drain(engine)
    assert done["joiner"].generated_ids == alone(endless, long_row("joiner")).generated_ids
    assert done["running"].generated_ids == endless.pool[0].answer


def test_the_budget_counts_rows_that_have_not_joined_and_refuses_a_joiner_beyond_it(either):
    engine, _ = recorded_engine(either, budget_bytes=128 * either.loaded.delta_bytes)
    engine.insert([long_row("a")])
    with pytest.raises(OutOfMemory) as raised:
        engine.insert([long_row("b", tokens=60)])
    assert raised.value.needed_bytes > engine.kv_budget_bytes
    assert set(engine.rows) == {"running", "a"}
    assert drain(engine)["a"].generated_ids == alone(either, long_row("a")).generated_ids


def test_running_rows_that_need_the_memory_get_it_from_a_row_that_has_not_joined(either):
    rows = [DecodingRequest(str(n), (9 + n,) * 20, 80, sampling=Sampling(ignore_eos=True)) for n in range(3)]
    joiner = long_row("joiner", tokens=60)
    engine = Engine(either.loaded, 252 * either.loaded.delta_bytes, EngineOptions(block_tokens=4, prefill_tokens=1))
    engine.insert(rows)
    engine.step()
    engine.insert([joiner])
    done: dict[str, tuple[int, ...]] = {}
    while engine.rows:
        done |= {row.id: row.generated_ids for row in engine.step()}
        assert engine.kv_bytes <= engine.kv_budget_bytes
    assert done == {row.id: alone(either, row).generated_ids for row in (*rows, joiner)}


@pytest.mark.parametrize("asked", [{"sampling": Sampling(1.2, seed=3)}, {"top_logprobs": 2}, {"stop": ("b", "qr")}])
def test_what_a_joiner_asks_for_holds_for_its_first_token(endless, asked):
    engine, _ = recorded_engine(endless)
    engine.insert([long_row("joiner", limit=9, **asked)])
    found, expected = drain(engine)["joiner"], alone(endless, long_row("joiner", limit=9, **asked))
    assert (found.generated_ids, found.reason) == (expected.generated_ids, expected.reason)
    assert [one.id for one in found.logprobs] == [one.id for one in expected.logprobs]


def test_the_prompts_log_probabilities_are_those_of_a_whole_prefill(each_model):
    asked = each_model.pool[1].sequence("asked", prompt_logprobs=True, top_logprobs=2)
    whole = alone(each_model, asked)
    engine = Engine(each_model.loaded, AMPLE, EngineOptions(prefill_tokens=3, prefix_cache=True))
    engine.insert([each_model.pool[0].sequence("running"), each_model.pool[1].sequence("with the same prompt")])
    engine.insert([asked])
    in_parts = drain(engine)["asked"]
    assert (in_parts.generated_ids, in_parts.cached_tokens) == (whole.generated_ids, 0)
    assert [one.id for one in in_parts.prompt_logprobs] == list(asked.prompt_ids)
    for one, other in zip(in_parts.prompt_logprobs, whole.prompt_logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_joiner_waits_for_the_row_that_computes_their_common_beginning(endless):
    engine = Engine(endless.loaded, AMPLE, EngineOptions(block_tokens=4, prefill_tokens=PIECE, prefix_cache=True))
    engine.insert([endless.pool[0].sequence("running")])
    engine.insert([long_row("a"), long_row("b")])
    while not engine.rows.get("b"):
        engine.step()
    done = drain(engine)
    assert (done["a"].cached_tokens, done["b"].cached_tokens) == (0, 5 * PIECE)
    assert done["b"].generated_ids == done["a"].generated_ids == alone(endless, long_row("a")).generated_ids


def test_a_device_out_of_memory_in_a_mixed_pass_loses_no_row(endless):
    engine, _ = recorded_engine(endless, fails_at={3})
    engine.insert([long_row("joiner")])
    engine.step()
    engine.step()
    with pytest.raises(OutOfMemory):
        engine.step()
    done = drain(engine)
    assert done["joiner"].generated_ids == alone(endless, long_row("joiner")).generated_ids
    assert done["running"].generated_ids == endless.pool[0].answer


def test_a_mixed_pass_is_a_window_with_tokens_of_prompts_and_no_prefill(endless):
    log = StepLog()
    engine = Engine(endless.loaded, AMPLE, EngineOptions(step_log=log, prefill_tokens=PIECE))
    engine.insert([endless.pool[0].sequence("running")])
    engine.step()
    engine.insert([long_row("joiner", tokens=2 * PIECE)])
    log.take()
    engine.step()
    engine.step()
    windows = [(one.prefilled_tokens, one.prefilled_rows, one.prefills, one.steps, one.row_steps) for one in log.take()]
    assert windows[-2:] == [(PIECE, 1, 0, 1, 1), (PIECE, 1, 0, 1, 2)]
    assert engine.figures.prefill_s > 0


@pytest.mark.parametrize("architecture", ["gpt2", "neox"])
def test_joiners_of_a_model_without_blocks_are_prefilled_when_they_come(architecture):
    here = known(architecture)
    engine = Engine(here.loaded, AMPLE)
    engine.insert([here.pool[0].sequence("running")])
    engine.insert([here.pool[1].sequence("joiner")])
    assert engine.rows["joiner"] == 1


@cache
def long_context(architecture):
    """A model for prompts of several pieces, and what `generate` answers to one."""
    torch.manual_seed(11)
    model, prompt = MAKERS[architecture](max_position_embeddings=3000), long_row("", 2 * PIECE_TOKENS + 9).prompt_ids
    answer, leads = answered_alone(model, prompt, 6, eos_token_id=None, pad_token_id=0)
    assert leads.min() > MARGIN
    return replace(prepare_model(model, Letters(), architecture), eos_ids=frozenset()), prompt, answer


@pytest.mark.parametrize("architecture", ["llama", "neox"])
def test_a_long_prompt_is_computed_in_pieces_even_if_nobody_waits_for_it(architecture):
    loaded, prompt, answer = long_context(architecture)
    decoder = Recorded(loaded.decoder)
    engine = Engine(replace(loaded, decoder=decoder, **({} if loaded.fused else {"model": decoder})), AMPLE)
    engine.insert([DecodingRequest("long", prompt, 6)])
    assert [engine.step() for _ in range(3)] == [[], [], []]
    assert decoder.passes == [(1, PIECE_TOKENS), (1, PIECE_TOKENS), (1, 9), (1, 1)]
    assert engine.rows == {"long": 2}
    engine.insert([DecodingRequest("other", prompt[9:], 1), DecodingRequest("short", prompt[:3], 1)])
    done = drain(engine)
    assert done["long"].generated_ids == answer
    assert [len(done[name].generated_ids) for name in ("other", "short")] == [1, 1]


@pytest.mark.parametrize("architecture", ["llama", "neox"])
def test_a_short_row_gets_its_tokens_between_the_pieces_of_a_long_prompt(architecture):
    loaded, prompt, answer = long_context(architecture)
    engine = Engine(loaded, AMPLE)
    engine.insert([DecodingRequest("long", prompt, 6)])
    engine.step()
    short = DecodingRequest("short", prompt[:40], 2)
    engine.insert([short])
    [done] = engine.step()
    assert (done.id, done.generated_ids) == ("short", alone_in(loaded, short))
    assert engine.rows == {"long": 0}
    assert drain(engine)["long"].generated_ids == answer


def alone_in(loaded, sequence):
    [row], _ = Engine(loaded, AMPLE).run([sequence])
    return row.generated_ids


def test_half_of_a_pass_is_for_the_longest_prompt_and_the_shortest_rest_comes_first(endless):
    rows = [new_row(endless.loaded, long_row(str(tokens), tokens), 0) for tokens in (30, 2, 5)]
    for row in rows:
        row.joined = 0
    assert prompt_parts(rows, 100) == {0: 30, 1: 2, 2: 5}
    assert prompt_parts(rows, 20) == {1: 2, 2: 5, 0: 13}
    assert prompt_parts(rows, 4) == {1: 2, 2: 1, 0: 1}


def test_a_long_prompt_in_pieces_can_be_removed_between_them():
    loaded, prompt, _ = long_context("llama")
    engine = Engine(loaded, AMPLE)
    engine.insert([DecodingRequest("long", prompt, 6)])
    engine.step()
    removed = engine.remove("long")
    assert removed is not None
    assert removed.generated_ids == ()
    engine.step()
    assert engine.rows == {}

"""Rows of several adapters in one pass: each is changed by its own, and shares nothing that another one computed."""

from dataclasses import replace

import pytest
import torch

from inference.engine_requests import DecodingRequest, FinishedRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.forward.adapters import AdaptedWeight, Adapters, LowRank
from inference.local.forward.linear_weights import PlainWeight
from inference.local.loading.adapter_loading import _joined
from inference.local.loading.model_loading import prepare_model
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.tiny_models import AMPLE, MAKERS, Letters, drain

BLOCK, NAMES = 4, ("", "polite", "rude")
PROMPT = tuple(range(8, 30))


def test_each_row_gets_what_its_own_adapter_adds():
    torch.manual_seed(1)
    weight, x = torch.randn(3, 5), torch.randn(4, 5)
    of_layer = {name: LowRank(torch.randn(5, 2), torch.randn(2, 3)) for name in ("a", "b")}
    adapters = Adapters(["a", "b", "elsewhere"])
    layer = AdaptedWeight(PlainWeight(weight), adapters, of_layer)
    names = ["b", "", "a", "elsewhere"]
    expected = torch.stack(
        [
            row @ weight.t() + (row @ of_layer[name].down @ of_layer[name].up if name in of_layer else 0)
            for row, name in zip(x, names, strict=True)
        ]
    )
    residual = torch.randn(4, 3)
    with adapters.serve(names):
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer.add_to(residual, x), residual + expected)
        several = x.repeat_interleave(2, 0)  # two tokens of each row
        torch.testing.assert_close(layer(several), expected.repeat_interleave(2, 0))
    assert torch.equal(layer(x), x @ weight.t())


@pytest.fixture(scope="module")
def adapted():
    """A tiny Llama with two adapters, which answer otherwise than it does."""
    torch.manual_seed(11)
    model = MAKERS["llama"]()
    path = "model.layers.0.self_attn.q_proj"
    added = {name: LowRank(torch.randn(32, 2), torch.randn(2, 32)) for name in NAMES[1:]}
    loaded = prepare_model(model, Letters(), "llama")
    adapters = Adapters(NAMES[1:])
    loaded.decoder.adapt(adapters, _joined(model, {path: added}))
    return replace(loaded, adapters=adapters, eos_ids=frozenset())


def sharing_engine(adapted):
    return Engine(adapted, AMPLE, EngineOptions(block_tokens=BLOCK, prefix_cache=True))


def asked(adapter, row="", salt=""):
    return DecodingRequest(row or adapter or "base", PROMPT, 6, adapter=adapter, cache_salt=salt)


def test_the_same_prompt_of_another_adapter_shares_no_block(adapted):
    engine = sharing_engine(adapted)
    alone: dict[str, FinishedRow] = {}
    for name in NAMES:
        fresh = sharing_engine(adapted)
        fresh.insert([asked(name)])
        alone |= drain(fresh)
    for turn in ("first", "again"):
        for name in NAMES:
            engine.insert([asked(name)])
            (row,) = drain(engine).values()
            assert row.generated_ids == alone[row.id].generated_ids
            assert row.cached_tokens == (0 if turn == "first" else 20), "whole blocks before the last token"
    assert len({row.generated_ids for row in alone.values()}) == len(NAMES)


def test_no_two_of_an_adapters_rows_share_blocks_with_another_while_they_run(adapted):
    engine = sharing_engine(adapted)
    engine.insert([asked(name, f"{name} {number}") for name in NAMES for number in range(2)])
    of_adapter: dict[str, set[int]] = {}
    for index, row in enumerate(engine._batch.rows):
        of_adapter.setdefault(row.sequence.adapter, set()).update(engine._kv.arrangement.blocks_of(index))
    blocks = list(of_adapter.values())
    assert sum(map(len, blocks)) == len(set().union(*blocks))
    drain(engine)


def test_tokens_that_are_guessed_behind_rows_of_adapters_are_verified_by_their_own(adapted):
    rows = [asked(name, f"{name} {number}") for number in range(2) for name in NAMES]
    plain = Engine(adapted, AMPLE)
    plain.insert(rows)
    expected = drain(plain)
    foreseen = [(*PROMPT, *row.generated_ids) for row in expected.values()]
    guessing = Engine(adapted, AMPLE, EngineOptions(guessing=Foreseen(foreseen, fewest=1)))
    guessing.insert(rows)
    found = drain(guessing)
    assert {name: row.generated_ids for name, row in found.items()} == {
        name: row.generated_ids for name, row in expected.items()
    }
    assert guessing.figures.right_guesses > 0


def test_salts_and_adapters_are_never_taken_for_each_other():
    salts = [("", ""), ("a", ""), ("", "a"), ("a", "b"), ("ab", ""), ("a/b", ""), ("a", "/b")]
    keys = {DecodingRequest("x", (1,), 2, cache_salt=salt, adapter=adapter).prefix_salt for salt, adapter in salts}
    assert len(keys) == len(salts)


def test_a_row_of_an_unknown_adapter_is_refused_alone(adapted):
    engine = sharing_engine(adapted)
    engine.insert([asked("unknown"), asked("polite")])
    done = drain(engine)
    assert (done["unknown"].reason, done["unknown"].generated_ids) == ("refused", ())
    assert done["unknown"].refusal == "the worker has no adapter unknown"
    assert done["polite"].reason == "limit"


def test_what_was_offloaded_of_a_row_is_not_kept_for_another_adapter(adapted):
    engine = sharing_engine(adapted)
    engine.insert([asked("polite", "row")])
    engine._steps.tally.prefill_s = 1e9  # so that copying is cheaper than another prefill
    engine.preempt("row")
    assert engine._offloaded.holds("row", PROMPT)
    engine.insert([asked("rude", "row")])  # an operator moved it, and it begins again
    assert not engine._offloaded.holds("row", PROMPT)
    drain(engine)

"""What the engine's cache holds, what happens when it or the device is full, and that no answer changes."""

import gc
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from request_body import Sampling
from tests.unit.inference.tiny_models import AMPLE, ANSWER, drain, known


def test_a_joiner_pads_no_running_row(endless):
    engine = Engine(endless.loaded, AMPLE)
    shortest, longest = sorted(endless.pool, key=lambda known: len(known.prompt_ids))[:: len(endless.pool) - 1]
    engine.insert([shortest.sequence("short")])
    engine.step()
    engine.insert([longest.sequence("long")])
    done = drain(engine)
    assert engine.figures.pad_tokens == 0
    assert engine.figures.invalid_tokens == 0
    assert {row.id: row.generated_ids for row in done.values()} == {"short": shortest.answer, "long": longest.answer}


def test_rows_that_leave_free_their_memory(endless):
    engine = Engine(endless.loaded, AMPLE)
    engine.insert([DecodingRequest(str(n), (9,) * 100, 20) for n in range(8)])
    engine.step()
    full = engine.kv_bytes
    for n in range(7):
        engine.remove(str(n))
    engine.step()
    assert engine.kv_bytes <= full / 4
    drain(engine)
    engine.step()
    assert engine.kv_bytes == 0


def test_the_cache_takes_the_budget_and_no_more(endless):
    def tensors():
        gc.collect()
        return sum(
            thing.untyped_storage().nbytes() for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)
        )

    engine = Engine(endless.loaded, AMPLE)
    before = tensors()
    engine.insert([known.sequence(str(n)) for n, known in enumerate(endless.pool)])
    token, beside = endless.loaded.delta_bytes, 8 * 2**10  # positions, slots and mask
    assert 0 <= tensors() - before - AMPLE // token * token < beside
    assert 0 < engine.kv_bytes <= AMPLE


def test_a_batch_beyond_the_budget_is_out_of_memory_and_the_next_one_runs(endless):
    tokens = 6 * 30
    engine = Engine(endless.loaded, tokens * endless.loaded.delta_bytes)
    with pytest.raises(OutOfMemory) as raised:
        engine.run([DecodingRequest(str(n), (9,) * 20, 60) for n in range(6)])
    assert raised.value.needed_bytes == 6 * 31 * endless.loaded.delta_bytes
    assert raised.value.budget_bytes == tokens * endless.loaded.delta_bytes
    results, figures = engine.run([endless.pool[0].sequence("next")])
    assert results[0].generated_ids == endless.pool[0].answer
    assert figures.peak_kv_bytes <= engine.kv_budget_bytes


def test_a_batch_that_fits_to_the_last_token_runs(endless):
    engine = Engine(endless.loaded, 6 * 30 * endless.loaded.delta_bytes)
    _, figures = engine.run(
        [DecodingRequest(str(n), (9,) * 20, 11) for n in range(6)]
    )  # the last token is never cached
    assert figures.peak_kv_bytes == engine.kv_budget_bytes


def test_rows_are_preempted_at_the_memory_threshold_and_resumed(endless):
    pool = endless.pool
    longest = max(len(known.prompt_ids) for known in pool) + ANSWER
    engine = Engine(endless.loaded, 8 * longest * endless.loaded.delta_bytes, EngineOptions(memory_threshold=0.4))
    engine.insert([known.sequence(str(n)) for n, known in enumerate(pool)])
    done = drain(engine)
    assert [done[str(n)].generated_ids for n in range(len(pool))] == [known.answer for known in pool]


def mixed_rows(size):
    """One long row and short ones."""
    return [
        DecodingRequest(str(n), (9,) * (100 if n == 0 else 10), 12, sampling=Sampling(ignore_eos=True))
        for n in range(size)
    ]


@pytest.mark.parametrize(
    ("architecture", "rows"),
    [
        ("llama", 1 + 16),  # 75 blocks: 25 for 100 tokens, 3 for 10
        ("gpt2", 3),  # of 100 tokens each: a model that is not fused attends to a rectangle only
    ],
)
def test_a_long_row_takes_no_memory_from_short_ones(architecture, rows):
    loaded = known(architecture).loaded
    engine = Engine(loaded, 300 * loaded.delta_bytes, EngineOptions(block_tokens=4))
    waiting = mixed_rows(20)
    done: dict[str, tuple[int, ...]] = {}
    with suppress(OutOfMemory):
        while waiting:
            engine.insert([waiting[0]])
            waiting.pop(0)
    assert len(engine.rows) == rows
    while waiting or engine.rows:
        done |= {row.id: row.generated_ids for row in engine.step()}
        assert engine.kv_bytes <= engine.kv_budget_bytes
        with suppress(OutOfMemory):
            engine.insert(waiting)
            waiting = []
    alone = Engine(loaded, AMPLE)
    assert done == {row.id: alone.run([row])[0][0].generated_ids for row in mixed_rows(20)}


def test_a_static_batch_is_a_rectangle_even_after_blocks(endless):
    engine = Engine(endless.loaded, 300 * endless.loaded.delta_bytes, EngineOptions(block_tokens=4))
    engine.insert(mixed_rows(6))
    drain(engine)
    with pytest.raises(OutOfMemory) as raised:
        engine.run(mixed_rows(6))
    assert raised.value.needed_bytes == 6 * 100 * endless.loaded.delta_bytes


class RunsOut:
    """A model on a device whose memory runs out at chosen forward passes."""

    def __init__(self, decoder, at):
        self.decoder, self.at, self.passes = decoder, at, 0

    def __call__(self, *args, **kwargs):
        self.passes += 1
        if self.passes in self.at:
            raise torch.OutOfMemoryError("the device has no more")
        return self.decoder(*args, **kwargs)


def test_a_device_out_of_memory_ends_a_batch_and_leaves_the_engine_usable(endless):
    known = endless.pool[0]
    engine = Engine(replace(endless.loaded, decoder=RunsOut(endless.loaded.decoder, {4})), AMPLE)
    with pytest.raises(OutOfMemory):
        engine.run([known.sequence("a")])
    assert (engine.rows, engine.kv_bytes) == ({}, 0)
    assert engine.run([known.sequence("a")])[0][0].generated_ids == known.answer


def test_a_device_out_of_memory_while_stepping_costs_a_prefill_and_no_token(endless):
    first, second = endless.pool[:2]
    engine = Engine(replace(endless.loaded, decoder=RunsOut(endless.loaded.decoder, {5, 6})), AMPLE)
    engine.insert([first.sequence("a")])
    engine.step()
    engine.step()
    engine.step()
    with pytest.raises(OutOfMemory):
        engine.step()
    with pytest.raises(OutOfMemory):
        engine.insert([second.sequence("b")])
    assert list(engine.rows) == ["a"]
    assert drain(engine)["a"].generated_ids == first.answer

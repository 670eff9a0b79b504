"""Passes over pages that are repeated instead of computed anew; a graph is a function that writes over its outputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations

import pytest
import torch

from inference.engine_requests import FinishedRow
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.forward.step_graphs import MOST_TOKENS, StepGraphs, rounded
from inference.local.loading.decoding_check import DecodingCheck, own_logits
from inference.local.loading.model_loading import LoadedModel
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.local.forward.torch_page_kernels import TorchKernels
from tests.unit.inference.tiny_models import AMPLE, ANSWER, drain, known


class Repeating:
    """A recorder whose graphs compute again into the same memory, as those of a device do.

    Once it has recorded `most` graphs, the device's memory is full.
    """

    def __init__(self, forgets: bool = False, most: int = 1000) -> None:
        self.recorded, self.repeated, self._forgets, self._most = 0, 0, forgets, most

    def record(self, compute):
        if self.recorded == self._most:
            raise torch.OutOfMemoryError
        outputs = compute()
        self.recorded += 1

        def repeat():
            self.repeated += 1
            if not self._forgets:
                for memory, again in zip(outputs, compute(), strict=True):
                    memory.copy_(again)

        return outputs, repeat


@contextmanager
def repeating(loaded: LoadedModel, most: int = 1000) -> Iterator[Repeating]:
    recorder = Repeating(most=most)
    loaded.decoder.kernels, loaded.decoder.graphs = TorchKernels(), StepGraphs(recorder)
    try:
        yield recorder
    finally:
        loaded.decoder.kernels = loaded.decoder.graphs = None


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_repeated_passes_change_no_answer_while_rows_join_and_leave(architecture):
    here = known(architecture)
    with repeating(here.loaded) as recorder:
        # prompts are computed 16 tokens a pass, however long passes take
        options = EngineOptions(block_tokens=4, prefix_cache=True, prefill_tokens=16)
        engine = Engine(here.loaded, AMPLE, options)
        done: dict[str, FinishedRow] = {}
        for number, answered in enumerate(here.pool):
            engine.insert([answered.sequence(str(number), limit=ANSWER - 2 * number)])
            done |= {row.id: row for row in engine.step()}
        done |= drain(engine)
    for number, answered in enumerate(here.pool):
        assert done[str(number)].generated_ids == answered.up_to(ANSWER - 2 * number)
    assert recorder.recorded <= len({rounded(tokens) for tokens in range(1, MOST_TOKENS + 1)})
    assert recorder.repeated > recorder.recorded


def test_nor_those_of_a_static_batch_whose_rectangle_grows(llama):
    with repeating(llama.loaded) as recorder:
        engine = Engine(llama.loaded, AMPLE)
        done, _ = engine.run([answered.sequence(str(number)) for number, answered in enumerate(llama.pool)])
        more, _ = engine.run([answered.sequence(str(number)) for number, answered in enumerate(llama.pool[:2])])
    assert [row.generated_ids for row in done] == [answered.answer for answered in llama.pool]
    assert [row.generated_ids for row in more] == [answered.answer for answered in llama.pool[:2]]
    assert recorder.repeated > recorder.recorded


def test_nor_do_they_where_guesses_are_verified(llama):
    foreseen = [(*answered.prompt_ids, *answered.answer) for answered in llama.pool]
    with repeating(llama.loaded) as recorder:
        engine = Engine(llama.loaded, AMPLE, EngineOptions(guessing=Foreseen(foreseen, right=0.8)))
        engine.insert([answered.sequence(str(number)) for number, answered in enumerate(llama.pool[:4])])
        done = drain(engine)
    assert {name: row.generated_ids for name, row in done.items()} == {
        str(number): answered.answer for number, answered in enumerate(llama.pool[:4])
    }
    assert recorder.repeated


def test_nor_do_they_once_the_memory_has_been_given_back_and_taken_again(llama):
    with repeating(llama.loaded) as recorder:
        engine = Engine(llama.loaded, AMPLE, EngineOptions(block_tokens=4))
        for _ in range(2):
            engine.insert([llama.pool[0].sequence("0")])
            recorded, done = recorder.recorded, drain(engine)
            assert done["0"].generated_ids == llama.pool[0].answer
            assert recorder.recorded > recorded, "a graph knows the addresses of the old memory"
            engine._batch.release_cache()


def test_an_engine_that_has_recorded_its_graphs_records_none_while_it_serves(llama):
    with repeating(llama.loaded) as recorder:
        engine = Engine(llama.loaded, AMPLE, EngineOptions(block_tokens=4, prefix_cache=True))
        recorded = engine.record_graphs(within_s=60.0)
        before = recorder.recorded
        assert len(recorded) == before
        assert engine.rows == {}
        engine.insert([answered.sequence(str(number)) for number, answered in enumerate(llama.pool)])
        done = drain(engine)
    assert [done[str(number)].generated_ids for number in range(len(llama.pool))] == [a.answer for a in llama.pool]
    assert recorder.recorded == before


def test_graphs_are_recorded_as_far_as_time_and_memory_allow(llama):
    with repeating(llama.loaded):
        assert Engine(llama.loaded, AMPLE).record_graphs(within_s=0.0) == []
        twelve_blocks = 12 * 4 * llama.loaded.layout.token_bytes
        scarce = Engine(llama.loaded, twelve_blocks, EngineOptions(block_tokens=4))
        assert scarce.record_graphs(within_s=60.0) == [1, 2, 3, 4, 6, 8, 12]
        scarce.insert([llama.pool[0].sequence("0", limit=3)])
        assert drain(scarce)["0"].generated_ids == llama.pool[0].up_to(3)
    assert Engine(llama.loaded, AMPLE).record_graphs(within_s=60.0) == []


def test_an_engine_whose_device_has_no_memory_for_its_graphs_serves_without_a_trace_of_them(llama):
    with repeating(llama.loaded, most=3) as recorder:
        engine = Engine(llama.loaded, AMPLE, EngineOptions(block_tokens=4))
        assert engine.record_graphs(within_s=60.0) == []
        recorder.recorded = 0
        engine.insert([llama.pool[0].sequence("a")])
        assert {name: row.generated_ids for name, row in drain(engine).items()} == {"a": llama.pool[0].answer}


def test_numbers_of_tokens_are_rounded_up_by_a_third_at_most():
    assert [rounded(tokens) for tokens in (1, 2, 3, 4, 5, 7, 9, 13, 17, 256)] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 256]
    assert all(tokens <= rounded(tokens) < 1.5 * tokens for tokens in range(1, MOST_TOKENS + 1))


@pytest.mark.parametrize("forgets", [False, True])
def test_a_device_whose_graphs_give_other_logits_computes_each_pass_anew(llama, forgets):
    decoder, layout = llama.loaded.decoder, llama.loaded.layout
    prompts = [[1, 2, 3], [9, 8, 7, 6, 5]]
    own = [own_logits(llama.loaded.model, prompt) for prompt in prompts]
    DecodingCheck(decoder, layout, None).let_read_pages(TorchKernels(), Repeating(forgets), prompts, own)
    kernels, graphs = decoder.kernels, decoder.graphs
    decoder.kernels = decoder.graphs = None
    assert kernels is not None
    assert (graphs is None) is forgets


class Wrong(TorchKernels):
    def attend(self, queries, *others):
        return super().attend(queries, *others) * 2


class WrongInTiles(TorchKernels):
    def attend(self, queries, keys, values, pages, positions):
        return super().attend(queries, keys, values, pages, positions) * (1 if pages.tiles is None else 2)


class Failing(TorchKernels):
    def attend(self, queries, *others):
        raise RuntimeError("this device cannot compile it")


@pytest.mark.parametrize("kernels", [Wrong(), WrongInTiles(), Failing()])
def test_a_device_whose_kernels_fail_or_give_other_logits_does_not_use_them(llama, kernels):
    decoder, prompts = llama.loaded.decoder, [[1, 2, 3], [9, 8, 7, 6, 5]]
    own = [own_logits(llama.loaded.model, prompt) for prompt in prompts]
    DecodingCheck(decoder, llama.loaded.layout, None).let_read_pages(kernels, Repeating(), prompts, own)
    assert decoder.kernels is None
    assert decoder.graphs is None


def test_the_middle_states_are_those_of_a_pass_without_pages(llama):
    def middle_after(step: int) -> torch.Tensor:
        engine = Engine(llama.loaded, AMPLE)
        engine.insert([answered.sequence(str(number)) for number, answered in enumerate(llama.pool[:3])])
        for _ in range(step):
            engine.step()
        states = llama.loaded.decoder.middle_states
        states.wanted = True
        states.kept.clear()
        engine.step()
        states.wanted = False
        return torch.cat(states.kept)

    # float32 sums in another order: 2.4e-5 apart on some CPUs, where the states of two rows are more than 0.1 apart
    tolerance, expected = 1e-4, middle_after(2)
    assert min((one - other).abs().max() for one, other in combinations(expected, 2)) > 1000 * tolerance
    with repeating(llama.loaded):
        torch.testing.assert_close(middle_after(2), expected, atol=tolerance, rtol=0)

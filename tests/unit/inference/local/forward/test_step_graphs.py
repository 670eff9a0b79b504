"""Parts of passes that are repeated instead of computed anew; a graph is a function that writes over its outputs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from inference.local.engine import Engine
from inference.local.forward.step_graphs import MOST_TOKENS, STEP, StepGraphs
from inference.local.loading.decoding_check import let_repeat, own_logits
from inference.local.loading.model_loading import LoadedModel
from inference.sequences import FinishedSequence
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.tiny_models import AMPLE, ANSWER, drain, known


class Repeating:
    """A recorder whose graphs compute again into the same memory, as those of a device do."""

    def __init__(self, forgets: bool = False) -> None:
        self.recorded, self.repeated, self._forgets = 0, 0, forgets

    def record(self, compute):
        outputs = compute()
        self.recorded += 1

        def repeat():
            self.repeated += 1
            if not self._forgets:
                for memory, again in zip(outputs, compute(), strict=True):
                    memory.copy_(again)

        return outputs, repeat


@contextmanager
def repeating(loaded: LoadedModel) -> Iterator[Repeating]:
    recorder = Repeating()
    loaded.decoder.graphs = StepGraphs(recorder)
    try:
        yield recorder
    finally:
        loaded.decoder.graphs = None


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_repeated_parts_change_no_answer_while_rows_join_and_leave(architecture):
    here = known(architecture)
    with repeating(here.loaded) as recorder:
        engine = Engine(here.loaded, AMPLE, block_tokens=4)
        done: dict[str, FinishedSequence] = {}
        for number, answered in enumerate(here.pool):
            engine.insert([answered.sequence(str(number), limit=ANSWER - 2 * number)])
            done |= {row.id: row for row in engine.step()}
        done |= drain(engine)
    for number, answered in enumerate(here.pool):
        assert done[str(number)].generated_ids == answered.up_to(ANSWER - 2 * number)
    sizes = MOST_TOKENS // STEP
    assert recorder.recorded <= sizes * (1 + len(here.loaded.layout.shapes)) < recorder.repeated


def test_nor_do_they_where_guesses_are_verified(llama):
    foreseen = [(*answered.prompt_ids, *answered.answer) for answered in llama.pool]
    with repeating(llama.loaded) as recorder:
        engine = Engine(llama.loaded, AMPLE, guessing=Foreseen(foreseen, right=0.8))
        engine.insert([answered.sequence(str(number)) for number, answered in enumerate(llama.pool[:4])])
        done = drain(engine)
    assert {name: row.generated_ids for name, row in done.items()} == {
        str(number): answered.answer for number, answered in enumerate(llama.pool[:4])
    }
    assert recorder.repeated


def test_neighbouring_numbers_of_tokens_share_a_graph():
    recorder = Repeating()
    graphs = StepGraphs(recorder)
    for tokens in (STEP, 1, STEP - 1, STEP + 1):
        (held,) = graphs.keep("inputs", [torch.full((tokens, 2), float(tokens))])
        (doubled,) = graphs.compute("double", lambda given: (2 * given,), held)
        assert torch.equal(doubled[:tokens], torch.full((tokens, 2), 2.0 * tokens))
    assert (recorder.recorded, recorder.repeated) == (2, 2)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_device_whose_graphs_give_other_logits_computes_each_pass_anew(llama, forgets):
    decoder, prompts = llama.loaded.decoder, [[1, 2, 3], [9, 8, 7, 6, 5]]
    own = [own_logits(llama.loaded.model, prompt) for prompt in prompts]
    let_repeat(decoder, Repeating(forgets), llama.loaded.layout, None, prompts, own)
    repeats, decoder.graphs = decoder.graphs is not None, None
    assert repeats is not forgets

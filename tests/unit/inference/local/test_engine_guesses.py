"""Rows whose next tokens are guessed, rightly or wrongly, get what they get without guesses."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chi2

from inference.engine_requests import DecodingRequest, JsonFormat
from inference.local.costs.cost_counters import StepLog
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.guessed_tokens import Guessing
from request_body import Sampling
from tests.unit.inference.foreseen_tokens import Foreseen
from tests.unit.inference.tiny_models import AMPLE, EOS, VOCABULARY, drain, known


def guessed_and_not(loaded, sequences, right=0.8):
    """The rows of a continuous batch without guesses and with them, and the figures of both."""
    plain = Engine(loaded, AMPLE)
    plain.insert(sequences)
    expected = drain(plain)
    foreseen = [(*sequence.prompt_ids, *expected[sequence.id].generated_ids) for sequence in sequences]
    guessing = Engine(loaded, AMPLE, EngineOptions(guessing=Foreseen(foreseen, right=right)))
    guessing.insert(sequences)
    return expected, drain(guessing), plain.figures, guessing.figures


def ends(rows):
    return {name: (row.generated_ids, row.reason) for name, row in rows.items()}


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": Sampling(1.3, seed=5)},
    "truncated": {"sampling": Sampling(1.0, top_k=9, top_p=0.8, min_p=0.01, seed=2)},
    "penalised": {"sampling": Sampling(repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.2)},
    "penalised and sampled": {"sampling": Sampling(0.9, repetition_penalty=1.2, frequency_penalty=0.5, seed=8)},
    "at least 15 tokens": {"sampling": Sampling(min_tokens=15)},
    "stop tokens": {"sampling": Sampling(1.0, seed=4, stop_token_ids=(3, 40, 50))},
    "stop strings": {"stop": ("b", "qr"), "sampling": Sampling(1.0, seed=6)},
    "a biased token": {"sampling": Sampling(logit_bias=((EOS, 1.5), (9, -100.0)))},
    "log probabilities": {"top_logprobs": 2, "sampling": Sampling(1.0, seed=1)},
    "those of the prompt": {"top_logprobs": 0, "prompt_logprobs": True},
}


@pytest.mark.parametrize("asked", OPTIONS)
def test_what_a_row_asks_for_holds_for_guessed_tokens(llama, asked):
    loaded = replace(llama.loaded, suppressed_ids=(11,))
    sequences = [
        answered.sequence(str(n), limit=3 + 6 * n, **OPTIONS[asked]) for n, answered in enumerate(llama.pool[:5])
    ]
    expected, found, without, figures = guessed_and_not(loaded, sequences)
    assert ends(found) == ends(expected)
    for name, row in expected.items():
        for one, other in ((found[name].logprobs, row.logprobs), (found[name].prompt_logprobs, row.prompt_logprobs)):
            assert [(at.id, [token for token, _ in at.likeliest]) for at in one] == [
                (at.id, [token for token, _ in at.likeliest]) for at in other
            ]
            assert all(math.isclose(a.logprob, b.logprob, abs_tol=1e-3) for a, b in zip(one, other, strict=True))
    assert 0 < figures.right_guesses < figures.guessed_tokens
    assert figures.valid_tokens == without.valid_tokens
    assert figures.generation_length == without.generation_length


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3", "bundled"])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_every_architecture_in_blocks_answers_as_without_guesses(architecture, right):
    here = known(architecture)
    sequences = [answered.sequence(str(n)) for n, answered in enumerate(here.pool)]
    _, found, _, figures = guessed_and_not(here.loaded, sequences, right)
    assert {row.id: row.generated_ids for row in found.values()} == {
        str(n): answered.answer for n, answered in enumerate(here.pool)
    }
    assert figures.guessed_tokens > 0


@pytest.mark.parametrize(
    "format",
    [
        JsonFormat('{"type": "array", "items": {"enum": ["abc", "de"]}, "minItems": 3, "maxItems": 5}'),
        JsonFormat(pattern="(ab|cde){2,9}"),
    ],
)
@pytest.mark.parametrize("right", [0.5, 1.0])
def test_a_guess_that_a_format_forbids_is_wrong_and_moves_no_matcher(format, right):
    bundled = known("bundled")
    sequences = [
        answered.sequence(str(n), limit=60, format=format, sampling=Sampling(1.0, seed=n), top_logprobs=0)
        for n, answered in enumerate(bundled.pool[:4])
    ]
    expected, found, _, figures = guessed_and_not(bundled.loaded, sequences, right)
    assert ends(found) == ends(expected)
    assert figures.right_guesses > 0


def test_the_tokens_behind_an_end_of_sequence_are_dropped(llama):
    answered = next(one for one in llama.pool if one.answer[-1] == EOS and len(one.answer) > 2)
    beyond = (*answered.prompt_ids, *answered.answer, 9, 9, 9, 9, 9)
    engine = Engine(llama.loaded, AMPLE, EngineOptions(guessing=Foreseen([beyond], most=20, right=1.0)))
    engine.insert([answered.sequence("a", limit=60)])
    done = drain(engine)
    assert (done["a"].generated_ids, done["a"].reason) == (answered.answer, "eos")


def test_guesses_take_no_memory_and_go_no_further_than_the_limit(endless):
    answered = endless.pool[0]
    whole = [(*answered.prompt_ids, *answered.answer)]
    lengths = []
    for guessing in (None, Foreseen(whole, most=31, right=1.0)):
        engine = Engine(endless.loaded, AMPLE, EngineOptions(block_tokens=4, guessing=guessing))
        engine.insert([answered.sequence("a", limit=18)])
        held = 0
        while engine.rows:
            held = max(held, engine.kv_bytes)
            done = engine.step()
        lengths.append((len(done[0].generated_ids), held))
    assert lengths[0] == lengths[1]


def test_a_row_in_a_rectangle_gets_no_guesses(endless):
    answered = endless.pool[0]
    engine = Engine(endless.loaded, AMPLE, EngineOptions(guessing=Foreseen([(*answered.prompt_ids, *answered.answer)])))
    [done], figures = engine.run([answered.sequence("a")])
    assert done.generated_ids == answered.answer
    assert (figures.guessed_tokens, figures.iterations) == (0, len(answered.answer))


@pytest.mark.parametrize("architecture", ["gpt2", "neox"])
def test_a_model_without_blocks_gets_no_guesses(architecture):
    here = known(architecture)
    _, found, _, figures = guessed_and_not(here.loaded, [here.pool[0].sequence("a")])
    assert found["a"].generated_ids == here.pool[0].answer
    assert figures.guessed_tokens == 0


def test_a_pass_that_gives_rows_two_tokens_each_counts_as_two_iterations(endless):
    first, second = endless.pool[:2]
    log, sequences = StepLog(), [first.sequence("a", 9), second.sequence("b", 9)]
    every = [(*one.prompt_ids, *one.answer) for one in (first, second)]

    engine = Engine(
        endless.loaded, AMPLE, EngineOptions(step_log=log, guessing=Foreseen(every, fewest=1, most=1, right=1.0))
    )
    engine.insert(sequences)
    rows = []
    while engine.rows:
        rows.append([len(ids.ids) for ids in engine.generated({"a": 0, "b": 0}).values()])
        engine.step()
    assert rows == [[1, 1], [3, 3], [5, 5], [7, 7]]
    figures = engine.figures
    assert (figures.iterations, figures.valid_tokens, figures.invalid_tokens) == (9, 18, 0)
    windows = [window for window in log.take() if window.steps]
    assert sum(window.steps for window in windows) == 8
    assert sum(window.row_steps for window in windows) == 16


def test_a_row_that_was_preempted_goes_on_being_guessed(endless):
    answered = endless.pool[0]
    guessing = Foreseen([(*answered.prompt_ids, *answered.answer)], right=1.0)
    engine = Engine(endless.loaded, AMPLE, EngineOptions(guessing=guessing))
    engine.insert([answered.sequence("a")])
    engine.step()
    engine.insert([engine.preempt("a")])
    assert drain(engine)["a"].generated_ids == answered.answer
    assert engine.figures.right_guesses > 0


def test_guessed_tokens_are_distributed_as_the_model_says(endless):
    """Pearson's test of the second tokens of many samples against the probabilities that the engine itself reports."""
    prompt, rng = endless.pool[0].prompt_ids, random.Random(1)
    sequences = [
        DecodingRequest(str(seed), prompt, 3, sampling=Sampling(2.0, seed=seed), top_logprobs=VOCABULARY)
        for seed in range(300)
    ]

    class Often(Foreseen):
        def guesses(self, texts, rooms):
            return [[rng.choice((18, 54, 42))] * room for room in rooms]

    engine = Engine(endless.loaded, AMPLE, EngineOptions(guessing=Often([])))
    engine.insert(sequences)
    done = drain(engine)
    assert engine.figures.right_guesses > 10
    expected, counted = torch.zeros(VOCABULARY), torch.zeros(VOCABULARY)
    for row in done.values():
        counted[row.logprobs[1].id] += 1
        ids, logprobs = zip(*row.logprobs[1].likeliest, strict=True)
        expected[list(ids)] += (torch.tensor(logprobs) / 2).softmax(-1)  # at the temperature of 2
    often = expected >= 5
    pairs = [*zip(counted[often], expected[often], strict=True), (counted[~often].sum(), expected[~often].sum())]
    assert sum((count - mean) ** 2 / mean for count, mean in pairs) < chi2.ppf(0.999, len(pairs) - 1)


class FreeTokens(Guessing):
    """Guesses as if all passes took as long."""

    def __init__(self, most):
        super().__init__(most)
        for tokens in range(1, 20):
            self.count(tokens, tokens - 1, 0.001)

    def count(self, tokens, guessed, seconds):
        super().count(tokens, guessed, 0.001)


def test_an_answer_that_copies_its_prompt_is_guessed_from_it():
    bundled = known("bundled")
    engine, right = Engine(bundled.loaded, AMPLE, EngineOptions(guessing=FreeTokens(8))), 0
    for number, answered in enumerate(bundled.pool):
        engine.insert([answered.sequence(str(number))])
        assert drain(engine)[str(number)].generated_ids == answered.answer
        right += engine.figures.right_guesses
    assert right > 0

"""What `generate` answers to each prompt alone, and ways in which the engine answers the same prompts together."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.loading.model_loading import LoadedModel
from tests.models.tiny_families import LENGTHS
from tests.unit.inference.tiny_models import MARGIN, answered_alone

ANSWER = 12
AMPLE, SCARCE = 3000, 2.8  # tokens of KV cache; rows as long as the longest
LONGEST = max(LENGTHS) + ANSWER

Answers = dict[str, tuple[int, ...]]
Way = Callable[[LoadedModel, list[DecodingRequest]], Answers]


@dataclass(frozen=True)
class Alone:
    """A prompt, and its answer by `generate` up to the first token that rounding could change."""

    prompt_ids: tuple[int, ...]
    answer: tuple[int, ...]


def answers_alone(model: Any, prompts: list[tuple[int, ...]], tokens: int = ANSWER) -> list[Alone]:
    """What `generate` answers in this number of tokens; it ends no answer."""
    alone = []
    for prompt in prompts:
        answer, leads = answered_alone(model, prompt, tokens, eos_token_id=None, pad_token_id=0)
        unclear = leads < MARGIN
        sure = int(unclear.nonzero()[0]) if unclear.any() else tokens
        alone.append(Alone(prompt, answer[:sure]))
    return alone


def to_completion(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """All rows in one padded batch."""
    return {row.id: row.generated_ids for row in Engine(loaded, AMPLE * loaded.delta_bytes).run(sequences)[0]}


def continuous(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """Rows join while others run."""
    return _served(Engine(loaded, AMPLE * loaded.delta_bytes, EngineOptions(block_tokens=5)), sequences, join_every=3)


def in_pieces(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """Rows join while others run, and are prefilled in pieces."""
    return _served(Engine(loaded, AMPLE * loaded.delta_bytes, EngineOptions(prefill_tokens=7)), sequences, join_every=3)


def preempted(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """A running row is taken out again and again, and comes back later; what is cached is not computed again."""
    rng = random.Random(1)
    parked: list[DecodingRequest] = []

    def take_out(engine: Engine, step: int) -> None:
        if parked and step % 2:
            engine.insert([parked.pop()])
        if engine.rows and step % 3 == 0:
            with suppress(KeyError):  # it finished with this step
                parked.append(engine.preempt(rng.choice(list(engine.rows))))

    engine = Engine(loaded, AMPLE * loaded.delta_bytes, EngineOptions(block_tokens=5, prefix_cache=True))
    answers = _served(engine, sequences, join_every=1, between=take_out)
    return answers | _served(engine, parked, join_every=1)


def in_scarce_memory(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """The engine preempts rows itself, because memory holds few, and evicts what is cached."""
    engine = Engine(
        loaded, int(SCARCE * loaded.layout.row_bytes(LONGEST)), EngineOptions(block_tokens=5, prefix_cache=True)
    )
    return _served(engine, sequences, join_every=1)


def in_slices(loaded: LoadedModel, sequences: list[DecodingRequest]) -> Answers:
    """Rows go back to the queue every few tokens."""
    waiting, answers = {sequence.id: sequence for sequence in sequences}, {}
    engine = Engine(loaded, AMPLE * loaded.delta_bytes)
    while waiting:
        for row in engine.run(list(waiting.values()), iteration_limit=5)[0]:
            answers[row.id] = row.generated_ids
            if row.reason == "unfinished":
                waiting[row.id] = replace(waiting[row.id], generated_ids=row.generated_ids)
            else:
                del waiting[row.id]
    return answers


WAYS: tuple[Way, ...] = (
    to_completion,
    continuous,
    in_pieces,
    preempted,
    in_scarce_memory,
    in_slices,
)


def _served(
    engine: Engine,
    sequences: list[DecodingRequest],
    join_every: int,
    between: Callable[[Engine, int], None] = lambda engine, step: None,
) -> Answers:
    waiting, answers, step = list(sequences), {}, 0
    while engine.rows or waiting:
        if waiting and step % join_every == 0:
            with suppress(OutOfMemory):  # it joins later
                engine.insert(waiting[:1])
                waiting.pop(0)
        between(engine, step)
        answers.update({row.id: row.generated_ids for row in engine.step()})
        step += 1
        assert step < 1000, "rows wait for ever"
    return answers

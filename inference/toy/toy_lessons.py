"""Training batches for the bundled model: seeded toy requests as token ids, alike lengths together, short first."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from inference.toy.toy_applications import MAX_WORDS, draw_request
from inference.toy.toy_tokenizer import ASSISTANT, EOS, SYSTEM, USER

SHORT_WORDS = 10  # the longest input at first: copying is found sooner in short texts
LONG_WORDS = MAX_WORDS + 6  # at last a little past the longest promised input, so that the promise is not the edge
SHORT_UNTIL, LONG_FROM = 0.2, 0.4  # shares of training; in between, the longest input grows in a straight line
# What is harder comes more often; an answer of classify is one token, so its share of the loss is small.
MIX = {"repeat": 1, "translate": 2, "remove": 2, "double": 3, "summarize": 1, "classify": 2}
BATCHES_SORTED = 16


@dataclass(frozen=True)
class Lesson:
    """One prompt and its answer as token ids; the answer ends on EOS."""

    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> int:
        """Length of prompt and answer together."""
        return len(self.prompt) + len(self.answer)


def batches(tokenizer: Tokenizer, steps: int, batch_tokens: int, seed: int) -> Iterator[list[Lesson]]:
    """Yield `steps` batches of `batch_tokens` tokens, padding included; inputs grow to full length on the way."""
    chance = random.Random(seed)
    step = 0
    while step < steps:
        longest = _longest_input(step / steps)
        lessons: list[Lesson] = []
        while sum(lesson.tokens for lesson in lessons) < BATCHES_SORTED * batch_tokens:
            lessons.extend(_draw(tokenizer, longest, chance) for _ in range(64))
        grouped = _by_length(lessons, batch_tokens)
        chance.shuffle(grouped)
        yield from grouped[: steps - step]
        step += len(grouped)


def _draw(tokenizer: Tokenizer, longest: int, chance: random.Random) -> Lesson:
    (application,) = chance.choices(tuple(MIX), tuple(MIX.values()))
    request = draw_request(application, chance.randint(1, longest), chance)
    prompt = f"{SYSTEM}{request.instruction}{USER}{request.input}{ASSISTANT}"
    return Lesson(tokenizer.encode(prompt).ids, tokenizer.encode(request.output + EOS).ids)


def _longest_input(progress: float) -> int:
    grown = min(1.0, max(0.0, (progress - SHORT_UNTIL) / (LONG_FROM - SHORT_UNTIL)))
    return round(SHORT_WORDS + (LONG_WORDS - SHORT_WORDS) * grown)


def _by_length(lessons: list[Lesson], batch_tokens: int) -> list[list[Lesson]]:
    grouped: list[list[Lesson]] = [[]]
    for lesson in sorted(lessons, key=lambda lesson: lesson.tokens):
        if (len(grouped[-1]) + 1) * lesson.tokens > batch_tokens:
            grouped.append([])
        grouped[-1].append(lesson)
    return grouped

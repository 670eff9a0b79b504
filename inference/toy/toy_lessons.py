"""Training batches for the bundled model: seeded toy requests as token ids, of similar lengths, short inputs first."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from inference.toy.toy_applications import MAX_WORDS, draw_request
from inference.toy.toy_tokenizer import ASSISTANT, EOS, SYSTEM, USER

SHORT_WORDS = 10  # the longest input at first: the model learns to copy sooner from short texts; not tuned
LONG_WORDS = MAX_WORDS + 6  # the longest input at last: a little beyond the longest request; not tuned
SHORT_UNTIL, LONG_FROM = 0.2, 0.4  # shares of training between which the longest input grows linearly; not tuned
# Weights of the applications. Harder ones are drawn more often, and `classify`, whose answers are one token, would have
# too small a share of the loss otherwise.
MIX = {"repeat": 1, "translate": 2, "remove": 2, "double": 3, "summarize": 1, "classify": 2}
# Lessons for so many batches are drawn at once and sorted by length. More of them pad less; not tuned.
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
    rng = random.Random(seed)
    step = 0
    while step < steps:
        longest = _longest_input(step / steps)
        lessons: list[Lesson] = []
        while sum(lesson.tokens for lesson in lessons) < BATCHES_SORTED * batch_tokens:
            lessons.extend(_draw(tokenizer, longest, rng) for _ in range(64))
        grouped = _by_length(lessons, batch_tokens)
        rng.shuffle(grouped)
        yield from grouped[: steps - step]
        step += len(grouped)


def _draw(tokenizer: Tokenizer, longest: int, rng: random.Random) -> Lesson:
    (application,) = rng.choices(tuple(MIX), tuple(MIX.values()))
    request = draw_request(application, rng.randint(1, longest), rng)
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

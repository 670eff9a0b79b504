"""Guesses for tests: the tokens of known answers, some of them wrong."""

import random

from inference.local.guessed_tokens import Guessing
from tests.unit.inference.tiny_models import VOCABULARY


class Foreseen(Guessing):
    """Guesses the tokens of known answers, every few of them wrong."""

    def __init__(self, answers, most=5, right=0.8, fewest=0):
        super().__init__(most)
        self._answers, self._right, self._fewest, self._rng = [*answers], right, fewest, random.Random(3)

    def begins(self, rows):
        return True

    def guesses(self, texts, rooms):
        return [[] if text is None else self._guess(text.tokens, room) for text, room in zip(texts, rooms, strict=True)]

    def _guess(self, tokens, room):
        begun = [answer for answer in self._answers if answer[: len(tokens)] == tuple(tokens)]
        count = max(0, min(self._rng.randint(self._fewest, self.most), room))
        coming = begun[0][len(tokens) : len(tokens) + count] if begun else ()
        return [token if self._rng.random() < self._right else self._rng.randrange(VOCABULARY) for token in coming]

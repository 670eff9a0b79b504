"""The number of words that a model states before its answer, against the words that it writes (Table 2)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learning.metrics import score
from learning.predictors.language_model import MOST_NUMBER, NUMBER
from learning.predictors.length_predictor import Prediction

# Chinese and Japanese are written without blanks: there each character counts as a word.
WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\s\u3040-\u30ff\u4e00-\u9fff]+")
# A first line that states a length, and is not the beginning of an answer: a number alone, or so many words.
OF_WORDS = re.compile(r"^\W*\d+\W*$|\d+\W*words?\b|\bwords?\b.*\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """What a model said that was asked for a length in advance: its first number, None without one, and its answer.

    `of_words`: the first line has the number and says that it counts words, or nothing else; the answer is what follows
    it. Any other number may mean anything, and the answer is the whole text.
    """

    words: int | None
    of_words: bool
    answer: str


def read_statement(text: str, opening: str) -> Statement:
    """The statement in a text; its number must stand in the `opening`, which is how the text begins."""
    number = NUMBER.search(opening)
    if number is None:
        return Statement(None, of_words=False, answer=text.strip())
    first_line, _, rest = text.lstrip().partition("\n")
    of_words = NUMBER.search(first_line) is not None and OF_WORDS.search(first_line) is not None
    return Statement(min(int(number.group()), MOST_NUMBER), of_words, (rest if of_words else text).strip())


def words_in(text: str) -> int:
    """How many words a text has."""
    return len(WORD.findall(text))


def score_statements(stated: Sequence[int | None], written: Sequence[int]) -> dict[str, float]:
    """Scores of the numbers against what was written, in the same unit; `failures` is the share without a number."""
    pairs = [(number, length) for number, length in zip(stated, written, strict=True) if number is not None]
    failures = {"asked": len(stated), "failures": round(1 - len(pairs) / len(stated), 4)}
    if not pairs:
        return failures
    median_error = float(np.median([abs(number - length) for number, length in pairs]))
    scores = score([Prediction(number, number) for number, _ in pairs], [length for _, length in pairs]).as_dict()
    shown = {name: scores[name] for name in ("n", "mae", "acc_50", "acc_100", "tau")}
    return failures | {"median_error": median_error} | shown

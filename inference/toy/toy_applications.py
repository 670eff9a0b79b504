"""Six toy applications: an instruction, an input of words, and the one right answer whose length follows the input.

Torch-free and deterministic: the demo, the benchmarks and the tests draw their requests here, and so does training.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.toy.toy_words import SPANISH, THEME_OF, THEMES

MAX_WORDS = 60
_REMOVED_THEMES = frozenset({"animals", "food", "clothes"})
_VOCABULARY = tuple(SPANISH)


@dataclass(frozen=True)
class ToyApplication:
    """One instruction with the rule of its answer: input words in, the answer's words out."""

    name: str
    instruction: str
    answer: Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class ToyRequest:
    """One request of an application together with its right answer."""

    application: str
    instruction: str
    input: str
    output: str


def _repeat(words: Sequence[str]) -> str:
    return " ".join(words)


def _translate(words: Sequence[str]) -> str:
    return " ".join(SPANISH[word] for word in words)


def _remove(words: Sequence[str]) -> str:
    return " ".join(word for word in words if THEME_OF[word] not in _REMOVED_THEMES) or "nothing"


def _double(words: Sequence[str]) -> str:
    return " ".join(f"{word} {word}" for word in words)


def _summarize(words: Sequence[str]) -> str:
    return " ".join(words[::3])


def _classify(words: Sequence[str]) -> str:
    return Counter(THEME_OF[word] for word in words).most_common(1)[0][0]


APPLICATIONS: dict[str, ToyApplication] = {
    application.name: application
    for application in (
        ToyApplication("repeat", "Repeat the text.", _repeat),
        ToyApplication("translate", "Translate to Spanish word by word.", _translate),
        ToyApplication("remove", "Remove animals, food and clothes.", _remove),
        ToyApplication("double", "Write each word twice.", _double),
        ToyApplication("summarize", "Summarize: keep every third word.", _summarize),
        ToyApplication("classify", "Which theme is it about?", _classify),
    )
}


def toy_requests(
    n: int,
    seed: int,
    max_words: int = MAX_WORDS,
    *,
    median_words: float = 10.0,
    applications: Sequence[str] = tuple(APPLICATIONS),
) -> list[ToyRequest]:
    """Draw `n` requests, applications mixed evenly; lengths are log-normal: many short, few long, none above max_words.

    The same arguments give the same requests; another seed gives others.
    """
    chance = random.Random(seed)
    requests = []
    for _ in range(n):
        words = round(chance.lognormvariate(math.log(median_words), 0.9))
        requests.append(draw_request(chance.choice(applications), min(max(words, 2), max_words), chance))
    return requests


def draw_request(application: str, words: int, chance: random.Random) -> ToyRequest:
    """Draw one request of `words` different words; what is to be classified has one theme ahead of all others."""
    toy = APPLICATIONS[application]
    drawn = _of_one_theme(words, chance) if application == "classify" else chance.sample(_VOCABULARY, words)
    return ToyRequest(application, toy.instruction, " ".join(drawn), toy.answer(drawn))


def _of_one_theme(words: int, chance: random.Random) -> list[str]:
    theme = chance.choice(tuple(THEMES))
    ahead = min(words // 2 + 1, len(THEMES[theme]))
    others = [word for word in _VOCABULARY if THEME_OF[word] != theme]
    drawn = chance.sample(tuple(THEMES[theme]), ahead) + chance.sample(others, words - ahead)
    chance.shuffle(drawn)
    return drawn

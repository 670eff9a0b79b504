"""Six toy applications: an instruction, an input of words, and the one right answer whose length follows the input.

Deterministic, and imports no torch: the demo, the benchmarks, the tests and the training draw their requests here.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.toy.toy_words import SPANISH, THEME_OF, THEMES

MAX_WORDS = 60  # the longest input of a request; the bundled model is trained a little beyond it
_REMOVED_THEMES = frozenset({"animals", "food", "clothes"})
_VOCABULARY = tuple(SPANISH)


@dataclass(frozen=True)
class ToyApplication:
    """An instruction, and the rule that makes the right answer from the input's words."""

    name: str
    instruction: str
    answer: Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class ToyRequest:
    """A request of one application, with its right answer as `output`."""

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
    rng = random.Random(seed)
    requests = []
    for _ in range(n):
        words = round(rng.lognormvariate(math.log(median_words), 0.9))
        requests.append(draw_request(rng.choice(applications), min(max(words, 2), max_words), rng))
    return requests


def draw_request(application: str, words: int, rng: random.Random) -> ToyRequest:
    """Draw one request of `words` different words; one theme leads in an input to be classified."""
    toy = APPLICATIONS[application]
    drawn = _of_one_theme(words, rng) if application == "classify" else rng.sample(_VOCABULARY, words)
    return ToyRequest(application, toy.instruction, " ".join(drawn), toy.answer(drawn))


def _of_one_theme(words: int, rng: random.Random) -> list[str]:
    theme = rng.choice(tuple(THEMES))
    of_theme = min(words // 2 + 1, len(THEMES[theme]))
    others = [word for word in _VOCABULARY if THEME_OF[word] != theme]
    drawn = rng.sample(tuple(THEMES[theme]), of_theme) + rng.sample(others, words - of_theme)
    rng.shuffle(drawn)
    return drawn

"""Made-up requests whose answers' lengths follow rules that a predictor can find."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from learning.features.length_predictor import Outcome, Prompt

WORDS = ("red", "green", "blue", "stone", "water", "river", "house", "tree", "cloud", "light")


def prompt(application: str = "echo", words: int = 5, text: str | None = None, limit: int = 1000) -> Prompt:
    text = text if text is not None else " ".join(WORDS[i % len(WORDS)] for i in range(words))
    return Prompt(application, f"Do {application}:", text, words, words + 3, limit)


def outcomes(
    n: int, *, seed: int = 0, slope: float = 2.0, application: str = "echo", noise: float = 1.0
) -> list[Outcome]:
    """Answers of about `slope` tokens a word, one a second."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        words = int(rng.integers(1, 60))
        text = " ".join(rng.choice(WORDS, words))
        length = max(1, round(slope * words + 3 + rng.normal(0, noise)))
        made.append(Outcome(prompt(application, words, f"{text} {seed} {i}"), length, at=float(i)))
    return made


def wordy_outcomes(n: int, seed: int = 0) -> list[Outcome]:
    """Answers whose length depends on one word of the input, a story or a name, and not on the input's length."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        words = int(rng.integers(5, 60))
        kind = ("story", "name")[i % 2]
        text = f"{kind} {' '.join(rng.choice(WORDS, words))} {seed} {i}"
        length = int(rng.integers(180, 220) if kind == "story" else rng.integers(5, 15))
        made.append(Outcome(prompt("chat", words, text), length, at=float(i)))
    return made


def shuffled(log: Sequence[Outcome], seed: int = 0) -> list[Outcome]:
    """The same requests, each with the length of another one."""
    lengths = np.random.default_rng(seed).permutation([o.generated_tokens for o in log])
    return [replace(o, generated_tokens=int(n)) for o, n in zip(log, lengths, strict=True)]


def later(log: Sequence[Outcome], seconds: float) -> list[Outcome]:
    """The same outcomes, `seconds` later."""
    return [replace(o, at=o.at + seconds) for o in log]

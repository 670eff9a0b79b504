"""Made-up requests whose answers' lengths follow rules that a predictor can find."""

import numpy as np

from learning.predictors.length_predictor import Outcome, Prompt

WORDS = ("red", "green", "blue", "stone", "water", "river", "house", "tree", "cloud", "light")


def prompt(application: str = "echo", words: int = 5, text: str | None = None, limit: int = 1000) -> Prompt:
    text = text if text is not None else " ".join(WORDS[i % len(WORDS)] for i in range(words))
    return Prompt(application, f"Do {application}:", text, words, words + 3, limit)


def outcomes(
    n: int, *, seed: int = 0, slope: float = 2.0, application: str = "echo", noise: float = 1.0
) -> list[Outcome]:
    """Answers of about `slope` tokens a word, one a second."""
    chance = np.random.default_rng(seed)
    made = []
    for i in range(n):
        words = int(chance.integers(1, 60))
        text = " ".join(chance.choice(WORDS, words))
        length = max(1, round(slope * words + 3 + chance.normal(0, noise)))
        made.append(Outcome(prompt(application, words, f"{text} {seed} {i}"), length, at=float(i)))
    return made


def wordy_outcomes(n: int, seed: int = 0) -> list[Outcome]:
    """Answers whose length has nothing to do with the input's, but with one word in it: a story or a name."""
    chance = np.random.default_rng(seed)
    made = []
    for i in range(n):
        words = int(chance.integers(5, 60))
        kind = ("story", "name")[i % 2]
        text = f"{kind} {' '.join(chance.choice(WORDS, words))} {seed} {i}"
        length = int(chance.integers(180, 220) if kind == "story" else chance.integers(5, 15))
        made.append(Outcome(prompt("chat", words, text), length, at=float(i)))
    return made

"""Selects what a refit learns from: recent answers of every application, without held-out texts and small errors."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from learning.features.length_predictor import Outcome, Prompt
from scheduling.costs import ServedBatch
from scheduling.request import COVERAGE

# The first 250 entries of the log stand for the paper's initial training set (2,000 requests a task). More would delay
# what a service learns from its errors; not tuned.
INITIAL_ENTRIES = 250
# The share of input texts that are held out; a larger share judges candidates better, but trains them less; not tuned.
HELD_OUT_SHARE = 0.2


Logged = TypeVar("Logged", Outcome, ServedBatch)


@dataclass(frozen=True, slots=True)
class TrainingSetBounds:
    """The most entries of a training set, and their greatest age in seconds.

    The defaults bound the time of a refit and forget a traffic mix within two weeks; they were not tuned.
    """

    outcomes: int = 4096
    age_s: float = 14 * 86_400.0


def is_held_out(prompt: Prompt) -> bool:
    """Return whether this input text is held out; its hash chooses one in five, always the same ones."""
    first = hashlib.sha256(prompt.input.encode("utf-8", "replace")).digest()[:4]
    return int.from_bytes(first, "big") < HELD_OUT_SHARE * 2**32


def select_entries(
    logged: Sequence[Logged],
    bounds: TrainingSetBounds,
    now: float,
    group: Callable[[Logged], Hashable],
    preferred: Callable[[Logged], bool] = lambda _: False,
) -> list[Logged]:
    """Return the newest entries within the bounds, oldest first, with an equal share of the set for each group.

    The unused share of small groups goes to the others. A group with more entries than its share first fills half of
    the share with `preferred` entries: wrong predictions teach more than right ones, but wrong ones alone would teach
    that every answer is an exception.
    """
    by_group = defaultdict(list)
    for entry in sorted(logged, key=lambda e: e.at, reverse=True):
        if now - entry.at <= bounds.age_s:
            by_group[group(entry)].append(entry)
    selected: list[Logged] = []
    unfilled = bounds.outcomes
    smallest_first = sorted(by_group.values(), key=len)
    for i, newest_first in enumerate(smallest_first):
        chosen = _choose(newest_first, unfilled // (len(smallest_first) - i), preferred)
        selected += chosen
        unfilled -= len(chosen)
    return sorted(selected, key=lambda e: e.at)


def _choose(newest_first: list[Logged], count: int, preferred: Callable[[Logged], bool]) -> list[Logged]:
    """Return `count` entries of one group: up to half of them the newest `preferred` ones, then the newest others."""
    if len(newest_first) <= count:
        return newest_first
    first = [i for i, entry in enumerate(newest_first) if preferred(entry)][: count // 2]
    taken = set(first)
    others = [i for i in range(len(newest_first)) if i not in taken][: count - len(first)]
    return [newest_first[i] for i in first + others]


def published_entries(logged: Sequence[Logged], wrong: Callable[[Logged], bool]) -> list[Logged]:
    """Return the paper's training set, oldest first: the initial entries, and those later ones that were `wrong`."""
    ordered = sorted(logged, key=lambda entry: entry.at)
    return ordered[:INITIAL_ENTRIES] + [entry for entry in ordered[INITIAL_ENTRIES:] if wrong(entry)]


def known_lengths(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes to learn from, none of them censored, in the order given.

    If many answers reach their limit, the other answers are short, and would alone teach that answers are short. So an
    answer that reached its limit counts as complete, because predictions end at the limit, too. Left out are answers
    that were cancelled or failed, and answers cut off by a limit that the application's complete answers often exceed:
    these would teach the limits that some clients set.
    """
    complete = defaultdict(list)
    for outcome in outcomes:
        if not outcome.censored:
            complete[outcome.prompt.application].append(outcome.generated_tokens)
    long = {application: float(np.quantile(lengths, COVERAGE)) for application, lengths in complete.items()}
    return [
        replace(outcome, censored=False)
        for outcome in outcomes
        if not outcome.censored
        or outcome.generated_tokens >= max(outcome.prompt.limit_tokens, long.get(outcome.prompt.application, 0.0))
    ]


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """An error is worth learning from if it exceeds an absolute and a relative threshold (Magnus III-B, III-D)."""

    absolute: float
    relative: float

    def worth_learning(self, predicted: float, actual: float) -> bool:
        """Return whether the error of this prediction exceeds both thresholds."""
        error = abs(predicted - actual)
        return error > self.absolute and error > self.relative * actual

    def scaled_to(self, actual: Sequence[float]) -> "ErrorRule":
        """Return the rule for a service whose `actual` numbers may be much smaller than the paper's.

        If answers have 12 tokens and batches take 0.1 s, no error exceeds 10 tokens or 2 s. The absolute threshold is
        then twice the relative threshold times the mean. At the paper's scale nothing changes.
        """
        if not actual:
            return self
        return ErrorRule(min(self.absolute, 2 * self.relative * float(np.mean(actual))), self.relative)


LENGTH_RULE = ErrorRule(absolute=10, relative=0.10)  # tokens, Magnus III-B
SERVING_RULE = ErrorRule(absolute=2.0, relative=0.20)  # seconds, Magnus III-D

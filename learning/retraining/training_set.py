"""What a refit is trained on: a bounded, recent part of the log, of every application, without held-out texts."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from learning.predictors.length_predictor import Prompt

HELD_OUT_SHARE = 0.2  # of texts: more judge a candidate better and teach it less; not tuned


class LogEntry(Protocol):
    """Anything in the log that has the time when it ended."""

    @property
    def at(self) -> float:
        """Seconds since the epoch."""
        ...


Logged = TypeVar("Logged", bound=LogEntry)


@dataclass(frozen=True, slots=True)
class TrainingSetBounds:
    """The most entries of a training set, and their greatest age in seconds.

    The defaults bound the time of a refit and forget a traffic mix within two weeks; they were not tuned.
    """

    outcomes: int = 4096
    age_s: float = 14 * 86_400.0


def is_held_out(prompt: Prompt) -> bool:
    """Whether requests with this input text are never trained on: one text in five, chosen by its hash for ever."""
    first = hashlib.sha256(prompt.input.encode("utf-8", "replace")).digest()[:4]
    return int.from_bytes(first, "big") < HELD_OUT_SHARE * 2**32


def select_entries(
    logged: Sequence[Logged],
    bounds: TrainingSetBounds,
    now: float,
    group: Callable[[Logged], Hashable],
    preferred: Callable[[Logged], bool] = lambda _: False,
) -> list[Logged]:
    """The newest entries within the bounds, oldest first, with an equal share of the set for each group.

    What small groups leave of their share goes to the others. A group that has more entries than its share fills
    half of it with `preferred` entries first: wrong predictions teach more than right ones, but a set of
    wrong ones alone would teach that every answer is an exception.
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
    """`count` entries of one group: the newest, but up to half of them the newest `preferred` ones."""
    if len(newest_first) <= count:
        return newest_first
    first = [i for i, entry in enumerate(newest_first) if preferred(entry)][: count // 2]
    taken = set(first)
    others = [i for i in range(len(newest_first)) if i not in taken][: count - len(first)]
    return [newest_first[i] for i in first + others]

"""Which outcomes a retraining sees: bounded, forgetting by age, covering every application, a holdout kept apart."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from learning.predictors.length_predictor import Prompt

HOLDOUT_SHARE = 0.2


class LogEntry(Protocol):
    """Anything in the log, by when it ended."""

    @property
    def at(self) -> float:
        """Seconds since the epoch."""
        ...


Logged = TypeVar("Logged", bound=LogEntry)


@dataclass(frozen=True, slots=True)
class TrainingSetBounds:
    """How much a training set may hold: entries in all, seconds of age."""

    outcomes: int = 4096
    age_s: float = 14 * 86_400.0


def is_held_out(prompt: Prompt) -> bool:
    """Whether requests with this input text only ever judge models: one in five texts, the same ones for ever."""
    first = hashlib.sha256(prompt.input.encode("utf-8", "replace")).digest()[:4]
    return int.from_bytes(first, "big") < HOLDOUT_SHARE * 2**32


def bounded(
    logged: Sequence[Logged],
    bounds: TrainingSetBounds,
    now: float,
    group: Callable[[Logged], Hashable],
    wanted: Callable[[Logged], bool] = lambda _: False,
) -> list[Logged]:
    """The newest entries within the bounds, oldest first, room shared so that rare groups keep theirs.

    Each group may keep an equal part, and what the rare ones leave goes to the others. Where a group has more than
    its part, half of it goes first to those `wanted`: predictions that were wrong teach more than right ones, but
    a set of wrong ones alone would teach that every answer is a surprise.
    """
    by_group = defaultdict(list)
    for entry in sorted(logged, key=lambda e: e.at, reverse=True):
        if now - entry.at <= bounds.age_s:
            by_group[group(entry)].append(entry)
    kept: list[Logged] = []
    room = bounds.outcomes
    rarest_first = sorted(by_group.values(), key=len)
    for i, newest_first in enumerate(rarest_first):
        part = _part(newest_first, room // (len(rarest_first) - i), wanted)
        kept += part
        room -= len(part)
    return sorted(kept, key=lambda e: e.at)


def _part(newest_first: list[Logged], room: int, wanted: Callable[[Logged], bool]) -> list[Logged]:
    if len(newest_first) <= room:
        return newest_first
    first = [i for i, entry in enumerate(newest_first) if wanted(entry)][: room // 2]
    chosen = set(first)
    rest = [i for i in range(len(newest_first)) if i not in chosen][: room - len(first)]
    return [newest_first[i] for i in first + rest]

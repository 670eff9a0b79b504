"""Which outcomes a retraining sees: bounded, forgetting by age, covering every application, a holdout kept apart."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from learning.length import Outcome, Prompt

HOLDOUT_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a training set may hold: outcomes in all, seconds of age."""

    outcomes: int = 4096
    age_s: float = 14 * 86_400.0


def is_held_out(prompt: Prompt) -> bool:
    """Whether requests with this input text only ever judge models: one in five texts, the same ones for ever."""
    first = hashlib.sha256(prompt.input.encode("utf-8", "replace")).digest()[:4]
    return int.from_bytes(first, "big") < HOLDOUT_SHARE * 2**32


def bounded(outcomes: Sequence[Outcome], bounds: Bounds, now: float) -> list[Outcome]:
    """The newest outcomes within the bounds, oldest first, room shared so that rare applications keep theirs.

    Room goes round: each application may keep an equal part, and what the rare ones leave goes to the others.
    """
    by_application = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda o: o.at, reverse=True):
        if now - outcome.at <= bounds.age_s:
            by_application[outcome.prompt.application].append(outcome)
    kept: list[Outcome] = []
    room = bounds.outcomes
    rarest_first = sorted(by_application.values(), key=len)
    for i, newest_first in enumerate(rarest_first):
        part = newest_first[: room // (len(rarest_first) - i)]
        kept += part
        room -= len(part)
    return sorted(kept, key=lambda o: o.at)

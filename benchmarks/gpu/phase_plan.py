"""The phases in order of worth, and what each is given. Imports neither torch nor what the machine may lack."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Phase(NamedTuple):
    """A phase: its name, the module of this folder with its `parts`, and the seconds after which no part begins."""

    name: str
    module: str
    budget_s: int
    small: bool = True  # whether it is also part of --small


# A run of 15 minutes has about 13 after the machine's start: the first eight phases, at their full budgets.
PHASES = (
    Phase("card", "card", 30),
    Phase("right-1b", "right_answers", 60),
    Phase("right-7b", "right_answers", 120, small=False),
    Phase("steps", "step_times", 90),
    Phase("field", "field_shapes", 60),
    Phase("live-vs", "live_policies", 120),
    Phase("live-magnus", "live_policies", 120, small=False),
    Phase("live-fusion", "live_policies", 120),
    Phase("live-all", "live_policies", 120, small=False),
    Phase("live-scls", "live_policies", 120, small=False),
    Phase("live-baton", "live_policies", 120, small=False),
    Phase("families", "families_on_card", 90),
    Phase("ways", "other_ways", 60),
)
NAMED = {phase.name: phase for phase in PHASES}


@dataclass(frozen=True, slots=True)
class Terms:
    """What a phase is given; `variant` is what follows the dash in its name."""

    variant: str
    device: str
    small: bool  # sizes for a CPU
    work: Path  # models and environments are made in this folder
    out: Path  # the folder of the results


# A part of a phase: its name, and the function that measures it and returns its figures.
Part = tuple[str, Callable[[], Any]]
Parts = Callable[[Terms], Iterator[Part]]

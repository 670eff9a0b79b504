"""Background rows fill whole workers first, the less the more the others hold, and no more than keeps a worker busy."""

from dataclasses import replace

import pytest

from scheduling.costs import ServingCurves
from scheduling.policies.wrapping.background_part import TypicalRow, background_part
from scheduling.policy import Assignment
from tests.unit.scheduling.scheduling_builders import a_request, a_worker

ROW = TypicalRow(length=10, remaining=90)


def test_the_more_the_others_hold_the_less_the_background_may_fill() -> None:
    tokens = []
    for rows in (0, 2, 4, 40):
        others = tuple(a_request(f"other{number}", length=10, predicted=90) for number in range(rows))
        busy = a_worker("busy", tokens=1000).given(Assignment("busy", others, joins=True), 0.0)
        parts = background_part([busy, a_worker("idle", tokens=1000)], 0.5, ROW)
        tokens.append(sum(part.memory.capacity_tokens for part in parts))
    assert tokens == [1000, 650, 300, 0]  # half of 2000 less 3.5 times 0, 200, 400, 4000


@pytest.mark.parametrize(("fixed_s", "rows"), [(0.0, 1), (1.0, 3), (8.0, 6), (1000.0, 6)])
def test_beside_others_the_background_fills_no_more_than_nearly_all_throughput_takes(fixed_s: float, rows: int) -> None:
    """A step takes this and a second a row; the memory holds ten rows, of which the share is 6."""
    costs = ServingCurves(prefill=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 1.0, 0.0, fixed_s))
    (part,) = background_part([a_worker(tokens=1000, costs=costs)], 0.6, ROW)
    assert part.memory.capacity_tokens == 100 * rows
    whole, *_ = background_part([a_worker(name, tokens=1000, costs=costs) for name in "ab"], 0.6, ROW)
    assert whole.memory.capacity_tokens == 1000  # where the others are not, throughput is all that counts


def test_workers_of_every_ability_serve_the_background_the_largest_first() -> None:
    small, large = a_worker("a", tokens=100), a_worker("b", tokens=300)
    unable = replace(a_worker("c", tokens=200), lacks=frozenset({"logprobs"}))
    parts = background_part([small, large, unable], 0.5, ROW)
    assert [(part.name, part.memory.capacity_tokens) for part in parts] == [("b", 200), ("c", 100)]

"""The pace at which work is served, as it is measured while requests wait."""

import numpy as np
import pytest

from scheduling.policies.fusion.serving_pace import LEAST_PACE, MOST_PACE, ServingPace
from tests.unit.scheduling.scheduling_builders import a_request

WORK_S = np.array([0.0, 0.0, 0.01, 0.0])  # 10 ms a token to generate


def of_half_a_second_a_second() -> ServingPace:
    pace = ServingPace()
    for step in range(4000):
        pace.decided([a_request(predicted=50)] if step % 4 == 0 else [], 9, step / 4)
    return pace


def test_the_pace_is_learned_while_requests_wait_and_not_while_none_does() -> None:
    assert of_half_a_second_a_second().pace(WORK_S) == pytest.approx(0.5, rel=0.05)
    idle = ServingPace()
    for step in range(400):
        idle.decided([], 0, step)
    assert idle.pace(WORK_S) == 1.0
    idle.decided([], 1, 400)
    idle.decided([], 1, 4000)  # planning was paused
    assert idle.pace(WORK_S) == 1.0


def test_seconds_at_the_measured_pace_stay_the_same_if_learned_costs_jump() -> None:
    pace = of_half_a_second_a_second()
    jumped = WORK_S / 4
    assert (jumped / pace.pace(jumped))[2] == pytest.approx(0.02, rel=0.25)  # and not a quarter


def test_nothing_is_learned_of_a_clock_that_goes_back() -> None:
    for back_s in (3.5, 1e5):
        pace = of_half_a_second_a_second()
        before = pace.pace(WORK_S)
        pace.decided([], 9, 999.75 - back_s)
        assert pace.pace(WORK_S) == before
        pace.decided([], 9, 1000.75 - back_s)  # learns again
        assert pace.pace(WORK_S) < before


def test_a_burst_into_empty_memory_and_a_long_standstill_move_the_pace_within_bounds() -> None:
    burst, still = ServingPace(), ServingPace()
    burst.decided([], 200, 0.0)
    burst.decided([a_request(predicted=30) for _ in range(200)], 9, 0.1)  # 60 s of work
    for at in range(300):
        still.decided([], 9, at)
    assert (burst.pace(WORK_S), still.pace(WORK_S)) == (MOST_PACE, LEAST_PACE)


def test_it_is_known_for_how_long_requests_have_been_waiting() -> None:
    pace = ServingPace()
    pace.decided([], 3, 10.0)
    pace.decided([], 3, 110.0)
    assert pace.waited_s(110.0) == 100.0
    pace.decided([], 0, 111.0)
    assert pace.waited_s(112.0) == 0.0

import math
from dataclasses import replace

import numpy as np
import pytest

from scheduling.policies.continuous_constants import PRIORITY_S
from scheduling.policies.fusion.length_buckets import BucketHeads, WaitingRequest
from scheduling.policies.fusion.priority_key import FleetLoad, prediction_weight, priority_keys
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import a_request

# a token to generate takes a tenth of a second of the fleet, nothing else does
LOAD = FleetLoad(drain_s=20.0, step_s=0.1, seconds_per_feature=np.array([0.0, 0.0, 0.1, 0.0]))


def key(
    request: Request, delay_s: float = 1.0, load: FleetLoad = LOAD, now: float = 0.0, ahead_tokens: float = 1e6
) -> float:
    waiting = WaitingRequest(request, work_ahead=(0.0, 0.0, ahead_tokens, 0.0))
    return float(priority_keys(BucketHeads.of([waiting]), np.array([[delay_s]]), load, now)[0, 0])


def test_the_key_is_the_arrival_plus_the_logarithm_of_the_delay() -> None:
    assert key(a_request(at=3.0), delay_s=5.0) == pytest.approx(3.0 + 20 * math.log(5))
    assert key(a_request(at=3.0), delay_s=5.0, now=10.0) == pytest.approx(-7.0 + 20 * math.log(5))


def test_where_nothing_waits_nothing_is_overtaken() -> None:
    idle = replace(LOAD, drain_s=0.0)
    assert key(a_request(at=1.0), delay_s=1000.0, load=idle) < key(a_request(at=1.01), delay_s=0.1, load=idle)


def test_a_level_of_priority_is_worth_a_time_of_waiting() -> None:
    assert key(replace(a_request(at=PRIORITY_S), priority=1)) == pytest.approx(key(a_request(at=0.0)))


def test_a_request_is_due_after_four_times_what_first_come_first_served_would_take() -> None:
    # ahead of it 100 tokens of 0.1 s, then its own ten iterations: 4 · (10 + 1) s
    assert key(a_request(at=0.0), ahead_tokens=100.0, now=43.9) > -1e3
    due = key(a_request(at=0.0), ahead_tokens=100.0, now=45.0)
    assert due < -1e11
    assert due < key(a_request(at=0.0), ahead_tokens=101.0, now=45.0)  # due 0.4 s later


def test_one_that_would_miss_its_deadline_goes_before_all_that_are_not_due() -> None:
    urgent, later = (replace(a_request(predicted=10), deadline_at=at) for at in (15.0, 500.0))
    assert key(urgent) < -1e8
    assert key(urgent) < key(replace(urgent, deadline_at=16.0))
    assert key(later) == pytest.approx(0.0)


@pytest.mark.parametrize(("tau", "weight"), [(None, 1.0), (1.0, 1.0), (0.5, math.sqrt(0.5)), (0.05, 0.0), (-1.0, 0.0)])
def test_predictions_weigh_as_much_as_their_rank_deserves(tau: float | None, weight: float) -> None:
    assert prediction_weight(tau) == pytest.approx(weight)

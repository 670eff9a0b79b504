"""What a client is told to expect follows from what others were given lately."""

from datetime import UTC, datetime

import pytest

from models.queue_position import QueueSnapshot
from models.response_time_estimate import FEWEST, fit_response_times

COPIES = [("copy", tokens, 0.5 + 0.1 * tokens) for tokens in range(1, 1 + FEWEST)]
LABELS = [("label", tokens, 0.2) for tokens in range(1, 1 + FEWEST)]


def a_room(waiting: int, backlog_s: float) -> QueueSnapshot:
    return QueueSnapshot(datetime(2026, 1, 1, tzinfo=UTC), waiting, backlog_s, 2.0, {}, {})


def test_longer_inputs_of_an_application_take_longer_if_they_did_so_lately() -> None:
    expected = fit_response_times(COPIES + LABELS)
    assert expected.response_s("copy", 20, None) == pytest.approx(2.5)
    assert expected.response_s("label", 20, None) == pytest.approx(0.2)


def test_an_application_of_which_little_is_known_is_taken_for_any_other() -> None:
    expected = fit_response_times([*LABELS, ("new", 50, 9.0)])
    of_new, of_unknown = (expected.response_s(name, 50, None) for name in ("new", "unknown"))
    assert of_new == of_unknown
    assert of_new is not None
    assert of_new > 1.0


def test_inputs_that_do_not_differ_and_longer_ones_that_were_answered_sooner_make_no_slope() -> None:
    same = fit_response_times([("copy", 5, 1.0), ("copy", 5, 3.0)])
    sooner = fit_response_times([("copy", 5, 3.0), ("copy", 10, 1.0)])
    assert same.response_s("copy", 100, None) == sooner.response_s("copy", 100, None) == pytest.approx(2.0)


def test_what_waits_now_is_a_lower_bound_and_an_empty_room_none() -> None:
    expected = fit_response_times(LABELS)
    assert expected.response_s("label", 1, a_room(waiting=50, backlog_s=7.0)) == 7.0
    assert expected.response_s("label", 1, a_room(waiting=0, backlog_s=7.0)) == pytest.approx(0.2)


def test_before_anything_has_ended_the_planner_is_believed_and_without_it_nothing_is_said() -> None:
    assert fit_response_times([]).response_s("copy", 1, a_room(waiting=1, backlog_s=3.0)) == 5.0
    assert fit_response_times([]).response_s("copy", 1, None) is None

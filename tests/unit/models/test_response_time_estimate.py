"""The ETA given at submission follows the response times of recent answers."""

from datetime import UTC, datetime

import pytest

from models.queue_position import QueueSnapshot
from models.response_time_estimate import MIN_ANSWERS, fit_response_times

COPIES = [("copy", tokens, 0.5 + 0.1 * tokens) for tokens in range(1, 1 + MIN_ANSWERS)]
LABELS = [("label", tokens, 0.2) for tokens in range(1, 1 + MIN_ANSWERS)]


def queue_snapshot(waiting: int, backlog_s: float) -> QueueSnapshot:
    return QueueSnapshot(datetime(2026, 1, 1, tzinfo=UTC), waiting, backlog_s, 2.0, {}, {})


def test_longer_inputs_of_an_application_take_longer_if_they_recently_did() -> None:
    estimate = fit_response_times(COPIES + LABELS)
    assert estimate.response_s("copy", 20, None) == pytest.approx(2.5)
    assert estimate.response_s("label", 20, None) == pytest.approx(0.2)


def test_an_application_with_few_answers_gets_the_line_of_all_applications() -> None:
    estimate = fit_response_times([*LABELS, ("new", 50, 9.0)])
    of_new, of_unknown = (estimate.response_s(name, 50, None) for name in ("new", "unknown"))
    assert of_new == of_unknown
    assert of_new is not None
    assert of_new > 1.0


def test_equally_long_inputs_and_longer_ones_that_were_answered_sooner_give_a_level_line() -> None:
    same = fit_response_times([("copy", 5, 1.0), ("copy", 5, 3.0)])
    sooner = fit_response_times([("copy", 5, 3.0), ("copy", 10, 1.0)])
    assert same.response_s("copy", 100, None) == sooner.response_s("copy", 100, None) == pytest.approx(2.0)


def test_the_backlog_is_a_lower_bound_unless_the_queue_is_empty() -> None:
    estimate = fit_response_times(LABELS)
    assert estimate.response_s("label", 1, queue_snapshot(waiting=50, backlog_s=7.0)) == 7.0
    assert estimate.response_s("label", 1, queue_snapshot(waiting=0, backlog_s=7.0)) == pytest.approx(0.2)


def test_before_the_first_answer_the_planners_backlog_counts_and_without_a_snapshot_there_is_no_eta() -> None:
    assert fit_response_times([]).response_s("copy", 1, queue_snapshot(waiting=1, backlog_s=3.0)) == 5.0
    assert fit_response_times([]).response_s("copy", 1, None) is None

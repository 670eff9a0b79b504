"""The ETA given at submission follows the planner's forecast, recent answers, and the errors of earlier ETAs."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from models.new_requests import NewRequest, SubmissionEta
from models.planning.queue_snapshot import ModelForecast, ModelForecasts, QueueSnapshot, WaitingQueue
from models.planning.response_time_estimate import (
    MIN_ANSWERS,
    MOST_AGE_S,
    MOST_APPLICATIONS,
    RECENT_ANSWERS,
    RecentAnswer,
    RecentAnswers,
    ResponseTimeEstimate,
    UnansweredRequest,
)
from scheduling.forecast.expectations import FEWEST
from scheduling.forecast.queue_order import LATEST, Coming, Group, QueueOrder

NOW = 1e9
COPIES = [
    RecentAnswer("acme/copy", tokens, 2 * tokens, 0.5 + 0.1 * tokens, NOW) for tokens in range(1, 1 + MIN_ANSWERS)
]
LABELS = [RecentAnswer("acme/label", tokens, 1, 0.2, NOW) for tokens in range(1, 1 + MIN_ANSWERS)]


SNAPSHOT_AT = datetime(2026, 1, 1, tzinfo=UTC)


def queue_snapshot(waiting: int, backlog_s: float, order: QueueOrder | None = None) -> QueueSnapshot:
    at = SNAPSHOT_AT
    forecasts = ModelForecasts(of_models={"small": ModelForecast(at=at.timestamp(), order=order)})
    queue = WaitingQueue(requests=waiting, backlog_s=backlog_s, served_s=2.0)
    return QueueSnapshot(at=at, queue=queue, forecasts=forecasts)


def behind(starts_in_s: float, token_s: float = 0.0) -> QueueOrder:
    """The order of an empty queue whose worker is free after `starts_in_s`."""
    return QueueOrder((0.0, 0.0, 0.0, 0.0), token_s, 1.0, starts_in_s)


def told(
    estimate: ResponseTimeEstimate,
    snapshot: QueueSnapshot | None,
    application: str = "copy",
    tokens: int = 5,
    limit: int = 100,
    after_s: float = 0.0,
) -> SubmissionEta | None:
    new = NewRequest("acme", "small", application, "", "x", {}, tokens, tokens, limit)
    return estimate.eta(new, snapshot, SNAPSHOT_AT.timestamp() + after_s)


def eta_s(
    estimate: ResponseTimeEstimate, application: str, tokens: int, snapshot: QueueSnapshot | None, limit: int = 100
) -> float | None:
    eta = told(estimate, snapshot, application, tokens, limit)
    return None if eta is None else eta.eta_s


def test_longer_inputs_of_an_application_take_longer_if_they_recently_did() -> None:
    estimate = RecentAnswers().add(COPIES + LABELS)
    assert eta_s(estimate, "copy", 20, None) == pytest.approx(2.5)
    assert eta_s(estimate, "label", 20, None) == pytest.approx(0.2)


def test_an_application_with_few_answers_gets_the_line_of_all_applications() -> None:
    estimate = RecentAnswers().add([*LABELS, RecentAnswer("acme/new", 50, 9, 9.0, NOW)])
    of_new, of_unknown = (eta_s(estimate, name, 50, None) for name in ("new", "unknown"))
    assert of_new == of_unknown
    assert of_new is not None
    assert of_new > 1.0


def test_lengths_follow_from_the_applications_own_answers_even_if_others_came_since() -> None:
    answers = RecentAnswers()
    estimate = answers.add(COPIES[1:])
    assert not estimate.knows("acme/copy")
    answers.add(COPIES[:1])
    estimate = answers.add([replace(label, finished_at=NOW + 1) for label in LABELS * RECENT_ANSWERS])
    assert estimate.knows("acme/copy")
    assert estimate.answer_tokens("acme/copy", 20, 100) == pytest.approx(40)
    assert estimate.answer_tokens("acme/unknown", 20, 100) == pytest.approx(1)
    estimate = answers.add([RecentAnswer(f"acme/{number}", 1, 1, 1.0, NOW) for number in range(MOST_APPLICATIONS)])
    assert not estimate.knows("acme/copy")


def test_the_backlog_is_a_lower_bound_unless_the_queue_is_empty() -> None:
    estimate = RecentAnswers().add(LABELS)
    assert eta_s(estimate, "label", 1, queue_snapshot(waiting=50, backlog_s=7.0)) == pytest.approx(7.0)
    assert eta_s(estimate, "label", 1, queue_snapshot(waiting=0, backlog_s=7.0)) == pytest.approx(0.2)


def test_before_the_first_answer_the_planners_backlog_counts_and_without_a_snapshot_there_is_no_eta() -> None:
    nothing = RecentAnswers().add([])
    assert eta_s(nothing, "copy", 1, queue_snapshot(waiting=1, backlog_s=3.0)) == pytest.approx(5.0)
    assert eta_s(nothing, "copy", 1, None) is None


def test_the_planners_forecast_is_read_at_the_length_that_the_applications_answers_have() -> None:
    estimate = RecentAnswers().add(COPIES + LABELS)
    snapshot = queue_snapshot(waiting=9, backlog_s=70.0, order=behind(3.0, 0.5))
    assert eta_s(estimate, "copy", 10, snapshot) == pytest.approx(3.0 + 0.5 * 20)
    assert eta_s(estimate, "copy", 10, snapshot, limit=4) == pytest.approx(3.0 + 0.5 * 4)
    assert eta_s(estimate, "label", 10, snapshot) == pytest.approx(3.5)


def test_what_is_told_is_corrected_by_how_far_earlier_forecasts_were_off_and_the_interval_by_how_much_that_varies() -> (
    None
):
    twice = [RecentAnswer("acme/copy", 5, 10, 2.0 + number / 100, NOW, forecast_s=1.0) for number in range(40)]
    eta = told(RecentAnswers().add(twice), queue_snapshot(1, 1.0, behind(10.0)))
    assert eta is not None
    assert eta.forecast_s == 10.0
    assert eta.eta_s == pytest.approx(22.0, rel=0.05)
    assert eta.low_s is not None
    assert eta.high_s is not None
    assert 19.8 <= eta.low_s < eta.eta_s < eta.high_s <= 24.4  # at least a tenth to each side


def test_an_eta_is_at_most_twice_its_forecast_and_its_interval_holds_what_comes_between_no_arrivals_and_that() -> None:
    late = [RecentAnswer("acme/copy", 5, 10, 5.0, NOW, forecast_s=1.0)] * 40
    order = replace(
        behind(0.0),
        waiting=(Group(-9.0, 10.0, (-1.0,) * 5, (1e9,) * 5),),  # 10 s of shorter requests wait, and 5 s a second come
        coming=(Coming(-9.0, 5.0),),
        delay_s=(1.0, 0.0, 0.0, 0.0, 0.0),
        due_ratio=9.0,
        lasts_s=4.0,
    )
    estimate, snapshot = RecentAnswers().add(late), queue_snapshot(1, 1.0, order)
    eta = told(estimate, snapshot)
    assert eta is not None
    assert [eta.forecast_s, eta.eta_s] == pytest.approx([30.0, 60.0])
    assert eta.low_s == pytest.approx(0.8 * 10.0)
    new = NewRequest("acme", "small", "copy", "", "x", {}, 5, 5, 100)
    assert estimate.within_s(new, snapshot, SNAPSHOT_AT.timestamp(), (0.5, 0.9)) == pytest.approx(
        [60.0, 150.0], rel=0.15
    )


@pytest.mark.parametrize(("errors", "known"), [(0, False), (FEWEST - 1, False), (FEWEST, True)])
def test_an_interval_is_given_once_enough_errors_of_earlier_forecasts_are_known(errors: int, known: bool) -> None:
    came = [RecentAnswer("acme/copy", 5, 10, 2.0 + number / 100, NOW, forecast_s=1.0) for number in range(errors)]
    unanswered = [UnansweredRequest(1.0, age_s=8.0, left_s=None)]
    eta = told(RecentAnswers().add(came, unanswered, NOW), queue_snapshot(1, 1.0, behind(10.0)))
    assert eta is not None
    assert (eta.low_s is not None, eta.high_s is not None) == (known, known)


def test_requests_that_wait_for_long_raise_the_upper_end_of_an_interval() -> None:
    answers, snapshot = RecentAnswers(), queue_snapshot(9, 1.0, behind(1.0))
    quick = [RecentAnswer("acme/copy", 5, 5, 1.0 + 0.01 * n, NOW + n / 10, 1.0) for n in range(100)]
    quickly = told(answers.add(quick, (), NOW + 10), snapshot)
    overdue = [UnansweredRequest(1.0, age_s=8.0, left_s=-6.0)] * 20
    warned = told(answers.add([], overdue, NOW + 10), snapshot)
    assert quickly is not None
    assert warned is not None
    assert (quickly.high_s or 9.0) < 2.0
    assert (warned.high_s or 0.0) > 2.5
    assert warned.low_s == quickly.low_s
    assert quickly.eta_s < warned.eta_s < 1.1 * quickly.eta_s  # a sixth of the requests has no answer yet


def test_an_interval_never_reaches_further_than_what_waits_explains() -> None:
    wild = [RecentAnswer("acme/copy", 5, 5, 1.0 + 20 * (n % 3 == 0), NOW + n, 1.0) for n in range(100)]
    eta = told(RecentAnswers().add(wild, (), NOW + 100), queue_snapshot(9, 1.0, behind(1.0)))
    assert eta is not None
    assert (eta.high_s or 99.0) <= LATEST * max(1.0, eta.eta_s)


def test_a_snapshot_that_is_older_leaves_less_to_wait_for() -> None:
    estimate, snapshot = RecentAnswers().add(COPIES), queue_snapshot(9, 1.0, behind(10.0))
    waits = [told(estimate, snapshot, after_s=after_s) for after_s in (0.0, 1.5, 99.0)]
    assert [eta and eta.forecast_s for eta in waits] == [10.0, 8.5, 10.0 - MOST_AGE_S]


def test_the_errors_of_short_answers_do_not_correct_long_ones() -> None:
    errors = {0: 1.0, 1: 1.0, 2: 4.0}
    came = [
        RecentAnswer("acme/copy", 10 * n, 10 * n, errors[n // 30], NOW + n, 1.0, third=n // 30) for n in range(1, 90)
    ]
    estimate, snapshot = RecentAnswers().add(came, (), NOW + 90), queue_snapshot(9, 1.0, behind(1.0))
    short, long = (told(estimate, snapshot, tokens=tokens, limit=1000) for tokens in (20, 850))
    assert short is not None
    assert long is not None
    assert (short.third, long.third) == (0, 2)
    assert [short.eta_s, long.eta_s] == pytest.approx([1.0, 4.0])


def test_intervals_that_are_missed_become_wider() -> None:
    snapshot = queue_snapshot(9, 1.0, behind(1.0))
    widths = []
    for low_s, high_s in ((0.0, 9.0), (0.0, 0.9), (4.0, 9.0)):
        answers = RecentAnswers()
        came = [RecentAnswer("acme/copy", 5, 5, 1.0 + n / 100, NOW + n, 1.0, low_s, high_s) for n in range(100)]
        eta = told(answers.add(came, (), NOW + 100), snapshot)
        assert eta is not None
        assert eta.low_s is not None
        assert eta.high_s is not None
        widths.append((eta.eta_s - eta.low_s, eta.high_s - eta.eta_s))
    kept, late, early = widths
    assert late[1] > kept[1]
    assert early[0] > kept[0]

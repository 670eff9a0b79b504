"""Positions and ETAs come from the planner's snapshot of the queue, and from nothing else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace, place_in_queue, place_in_stream, tokens_left
from models.planning.queue_snapshot import (
    AnswerForecast,
    BatchInQueue,
    Decisions,
    ModelForecast,
    ModelForecasts,
    ModelState,
    QueueSnapshot,
    WaitingQueue,
)
from models.tables import RequestStatus, StoredBatch, StoredRequest
from scheduling.forecast.queue_order import QueueOrder
from scheduling.request import RowLength

NOW = datetime(2026, 11, 20, 21, 10, tzinfo=UTC)
BATCHES = (
    BatchInQueue(ids=("a", "b"), size=2, starts_in_s=0.0, estimated_s=3.0),
    BatchInQueue(ids=("c",), size=2, starts_in_s=3.0, estimated_s=5.0),  # the snapshot names only the first
    BatchInQueue(ids=("e",), size=1, starts_in_s=8.0, estimated_s=1.0),
)


def with_forecast(**forecast: Any) -> QueueSnapshot:
    """The snapshot with this forecast of the small model's requests."""
    forecasts = {"small": ModelForecast(**forecast)} if forecast else {}
    return QueueSnapshot(
        at=NOW,
        queue=WaitingQueue(requests=4, backlog_s=9.0, batches=BATCHES),
        forecasts=ModelForecasts(of_models=forecasts),
    )


SNAPSHOT = with_forecast()


def view(id: str, status: str = "queued", batch: StoredBatch | None = None) -> RequestView:
    return RequestView(StoredRequest(id=id, status=RequestStatus(status)), batch, 0, NOW)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_earlier_batches_are_served_first_and_all_requests_of_a_batch_end_together() -> None:
    assert place_in_queue(view("a"), SNAPSHOT) == QueuePlace(1, later(3))
    assert place_in_queue(view("b"), SNAPSHOT) == QueuePlace(2, later(3))
    assert place_in_queue(view("c"), SNAPSHOT) == QueuePlace(3, later(8))
    assert place_in_queue(view("e"), SNAPSHOT) == QueuePlace(5, later(9))


def test_a_request_that_the_snapshot_does_not_list_comes_behind_the_whole_backlog() -> None:
    # 9 s until a worker is free for it, and a batch takes (3 + 5 + 1) / 3 s on average
    assert place_in_queue(view("new"), SNAPSHOT) == QueuePlace(None, later(12))


def test_a_request_for_a_model_without_a_worker_has_no_position_and_no_eta() -> None:
    unserved = SNAPSHOT.model_copy(update={"models": {"gone": ModelState(unserved=4)}})
    waits = RequestView(StoredRequest(id="a", model="gone", status=RequestStatus.queued), None, 0, NOW)
    assert place_in_queue(waits, unserved) == QueuePlace()


@pytest.mark.parametrize("decisions", [Decisions(spent_tenants=("acme",)), Decisions(spent_jobs=("batch_1",))])
def test_a_request_whose_budget_is_spent_has_no_position_and_no_eta_until_it_runs(decisions: Decisions) -> None:
    asked = view("r")
    asked.request.tenant, asked.request.job_id, asked.request.arrived_at = "acme", "batch_1", NOW
    asked.request.eta = {"forecast_s": 5.0, "eta_s": 5.0, "low_s": 1.0, "high_s": 9.0}
    spent = with_forecast(**EXPECTED).model_copy(update={"decisions": decisions})
    assert place_in_queue(asked, spent) == QueuePlace()
    assert place_in_queue(replace(asked, tokens_so_far=1), spent).eta_at is not None  # it has begun, and only moves
    asked.request.status = RequestStatus.in_progress
    assert place_in_queue(asked, spent).eta_at is not None


def test_a_running_batch_ends_after_its_estimated_serving_time_and_never_in_the_past() -> None:
    fresh = StoredBatch(
        id=1, estimated_s=4.0, started_at=NOW - timedelta(seconds=1), assigned_at=NOW - timedelta(seconds=2)
    )
    late = StoredBatch(id=2, estimated_s=1.0, started_at=None, assigned_at=NOW - timedelta(seconds=9))
    assert place_in_queue(view("a", "in_progress", fresh), SNAPSHOT) == QueuePlace(None, later(3))
    assert place_in_queue(view("a", "in_progress", late), SNAPSHOT) == QueuePlace(None, NOW)
    assert place_in_queue(view("a", "in_progress"), SNAPSHOT) == QueuePlace()


EXPECTED: dict[str, Any] = {
    "at": NOW.timestamp() - 2,
    "order": QueueOrder((0.0, 0.0, 0.0, 0.0), 0.25, 1.0),
    "jobs": {"c": AnswerForecast(1, 7.0, 5.0, 12.0), "r": AnswerForecast(None, 4.0, 1.0, 9.0)},
}


def test_what_the_last_forecast_says_counts_before_what_batches_say() -> None:
    snapshot = with_forecast(**EXPECTED)
    assert place_in_queue(view("c"), snapshot) == QueuePlace(1, later(5), later(3), later(10))
    assert place_in_queue(view("a"), snapshot) == QueuePlace(1, later(3))
    order = snapshot.order("small")
    assert order is not None
    assert order.response_s(1, 4) == 1.0


def test_a_running_request_is_expected_as_forecast_and_no_instant_is_in_the_past() -> None:
    snapshot = with_forecast(**EXPECTED)
    assert place_in_queue(view("r", "in_progress"), snapshot) == QueuePlace(None, later(2), NOW, later(7))


def test_in_a_stream_the_last_forecast_counts_whatever_the_status_was_when_the_stream_began() -> None:
    snapshot = with_forecast(**EXPECTED)
    assert place_in_stream(view("r"), snapshot) == QueuePlace(None, later(2), NOW, later(7))
    assert place_in_stream(view("c"), snapshot) == QueuePlace(1, later(5), later(3), later(10))
    assert place_in_stream(view("new"), snapshot) == place_in_stream(view("r"), None) == QueuePlace()


def test_the_tokens_left_are_those_of_the_last_prediction_behind_the_tokens_so_far() -> None:
    predicted = {"predicted_tokens": 100, "predicted_upper_tokens": 200, "limit_tokens": 150}
    request = StoredRequest(id="r", status=RequestStatus.in_progress, **predicted)
    median, low, high = tokens_left(request, QueuePlace(), 0) or (0, 0, 0)
    assert (median, high) == (100, 150)  # at most the limit
    assert 0 < low < median
    later_on = tokens_left(request, QueuePlace(), 120)
    assert later_on is not None
    assert later_on[2] <= 30

    reread = with_forecast(**EXPECTED | {"jobs": {"r": AnswerForecast(None, 4.0, 1.0, 9.0, RowLength(32, 40, 41))}})
    place = place_in_stream(view("r"), reread)
    assert tokens_left(request, place, 35) == (5, 4, 6)  # the engine itself predicts 40 tokens in all
    assert tokens_left(request, place, 3) == (8, 7, 9)  # a stream may show fewer than the 32 tokens that it read
    unknown = StoredRequest(id="u", status=RequestStatus.queued, limit_tokens=9)
    ended = StoredRequest(id="r", status=RequestStatus.completed, **predicted)
    assert tokens_left(unknown, QueuePlace(), 0) is tokens_left(ended, QueuePlace(), 0) is None


def test_a_model_without_a_worker_has_no_order() -> None:
    assert with_forecast(**EXPECTED | {"order": None}).order("small") is None
    assert with_forecast().order("small") is None


def test_until_a_forecast_names_it_a_request_keeps_the_interval_given_at_submission_and_its_eta_within() -> None:
    batch = StoredBatch(id=1, estimated_s=50.0, started_at=NOW, assigned_at=NOW)
    eta = {"forecast_s": 4.0, "eta_s": 9.0, "low_s": 2.0, "high_s": 13.0}
    told = StoredRequest(id="a", status=RequestStatus.in_progress, arrived_at=later(-5), eta=eta)
    assert place_in_queue(RequestView(told, batch, 0, NOW), SNAPSHOT) == QueuePlace(None, later(8), NOW, later(8))


def test_a_forecast_without_an_interval_has_the_one_given_at_submission_or_none() -> None:
    without = with_forecast(**EXPECTED | {"jobs": {"a": AnswerForecast(1, 6.0, None, None)}})
    eta = {"forecast_s": 4.0, "eta_s": 9.0, "low_s": 2.0, "high_s": 13.0}
    for given, interval in ((eta, (NOW, later(8))), (eta | {"low_s": None, "high_s": None}, (None, None))):
        request = StoredRequest(id="a", status=RequestStatus.queued, arrived_at=later(-5), eta=given)
        assert place_in_queue(RequestView(request, None, 0, NOW), without) == QueuePlace(1, later(4), *interval)


def test_a_request_behind_those_that_are_named_comes_with_the_middle_one_of_these() -> None:
    snapshot = with_forecast(**EXPECTED, behind=AnswerForecast(None, 60.0, 30.0, 90.0))

    def unnamed(arrived_s: float) -> RequestView:
        request = StoredRequest(id="x", model="small", status=RequestStatus.queued, arrived_at=later(arrived_s))
        return RequestView(request, None, 0, NOW)

    assert place_in_queue(unnamed(-5), snapshot) == QueuePlace(None, later(58), later(28), later(88))
    assert place_in_queue(unnamed(1), snapshot) == QueuePlace(None, later(12))  # it came after the snapshot


def test_a_row_that_leaves_by_itself_takes_its_share_of_the_batchs_seconds() -> None:
    batch = StoredBatch(id=1, joins=True, estimated_s=8.0, predicted_generation_length=80, started_at=NOW)
    request = StoredRequest(id="a", status=RequestStatus.in_progress, predicted_tokens=20)
    assert place_in_queue(RequestView(request, batch, 0, NOW), SNAPSHOT) == QueuePlace(None, later(2))

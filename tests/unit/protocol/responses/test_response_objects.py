"""When a client is asked to come back."""

from datetime import UTC, datetime, timedelta

import pytest

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from models.tables import RequestStatus, StoredRequest
from protocol.responses.response_objects import retry_after_s

NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "eta_s", "wait"),
    [
        ("queued", None, 1),
        ("queued", 0.1, 1),
        ("queued", -5, 1),
        ("queued", 7.2, 8),
        ("in_progress", 119.5, 120),
        ("in_progress", 4000, 120),
        ("completed", None, None),
        ("cancelled", 9, None),
    ],
)
def test_retry_after_is_the_estimate_within_bounds(status: str, eta_s: float | None, wait: int | None) -> None:
    eta_at = None if eta_s is None else NOW + timedelta(seconds=eta_s)
    view = RequestView(StoredRequest(id="a", status=RequestStatus(status)), None, 0, NOW)
    assert retry_after_s(view, QueuePlace(None, eta_at)) == wait


@pytest.mark.parametrize(("eta_s", "high_s", "wait"), [(7, 16, 12), (0, 0.5, 1), (10, 10, 10), (30, 500, 120)])
def test_retry_after_is_halfway_from_the_estimate_to_its_upper_bound(eta_s: float, high_s: float, wait: int) -> None:
    view = RequestView(StoredRequest(id="a", status=RequestStatus.queued), None, 0, NOW)
    place = QueuePlace(1, *(NOW + timedelta(seconds=s) for s in (eta_s, 0, high_s)))
    assert retry_after_s(view, place) == wait

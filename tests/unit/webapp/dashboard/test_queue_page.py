"""The queue in serving order: which batches a filter shows, what they are made of, why the first is first."""

from typing import Any

from models.operations.operator_jobs import QueuedJob
from models.planning.queue_snapshot import BatchInQueue
from webapp.dashboard.queue_page import QueueFilter, waiting_rows, why_first


def waiting(name: str, tenant: str = "acme", application: str = "chat", waited_s: float = 4.0) -> QueuedJob:
    return QueuedJob(name, tenant, application, "small", 5, 10, 0, waited_s)


def batch(*ids: str, **more: Any) -> BatchInQueue:
    values = {"size": len(ids), "response_ratio": 3.0, "estimated_s": 2.0, "starts_in_s": 0.0} | more
    return BatchInQueue(ids=ids, **values)


REQUESTS = {"a": waiting("a"), "b": waiting("b", tenant="other", waited_s=9.0), "c": waiting("c", application="news")}


def test_batches_keep_their_places_when_others_are_filtered_out() -> None:
    rows = waiting_rows([batch("a"), batch("b", "c")], REQUESTS, QueueFilter(tenant="other"))
    assert [(row.place, row.shown) for row in rows] == [(2, 1)]
    assert waiting_rows([batch("a")], REQUESTS, QueueFilter(model="large")) == []


def test_without_a_filter_requests_that_are_not_listed_count_too() -> None:
    (row,) = waiting_rows([batch("a", "b", size=2000)], REQUESTS, QueueFilter())
    assert row.shown == 2000
    assert row.waited_s == 9.0
    assert row.values("tenant") == ["acme", "other"]


def test_what_has_gone_meanwhile_is_left_out() -> None:
    (row,) = waiting_rows([batch("a", "gone")], REQUESTS, QueueFilter())
    assert [one.id for one in row.requests] == ["a"]


def test_every_policy_says_why_the_first_is_first() -> None:
    (row,) = waiting_rows([batch("a")], REQUESTS, QueueFilter())
    assert "waited 4.0 s for 2.0 s of work" in why_first("magnus", row)
    (half,) = waiting_rows([batch("a", sealed=True)], REQUESTS, QueueFilter())
    assert why_first("fusion", half).startswith("It is a half of a batch that ran out of memory")
    assert why_first("one of yours", row) == "The policy in force puts it first."

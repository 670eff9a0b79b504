"""The queue in serving order: which batches a filter shows, what they are made of, why the first is first."""

from dataclasses import replace
from typing import Any

from models.operations.operator_jobs import QueuedJob
from models.planning.queue_snapshot import BatchInQueue
from webapp.dashboard.queue_page import QueueFilter, policy_named, waiting_groups, waiting_rows, why_first


def waiting(name: str, tenant: str = "acme", application: str = "chat", waited_s: float = 4.0) -> QueuedJob:
    return QueuedJob(name, tenant, application, "small", 5, 10, waited_s)


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


def test_what_has_gone_meanwhile_is_left_out_and_the_others_keep_their_places() -> None:
    rows = waiting_rows([batch("gone"), batch("a", "gone too"), batch("b")], REQUESTS, QueueFilter())
    assert [(row.place, [(one.place, one.job.id) for one in row.requests]) for row in rows] == [
        (2, [(2, "a")]),
        (3, [(4, "b")]),
    ]


def test_groups_are_of_one_tenant_and_of_lengths_between_the_same_bounds_the_shortest_and_largest_first() -> None:
    predicted = {"a": 16, "b": 17, "c": 64, "d": 5000, "e": 20}
    requests = {name: replace(waiting(name), predicted_tokens=tokens) for name, tokens in predicted.items()}
    requests["e"] = replace(requests["e"], tenant="other", waited_s=9.0)
    rows = waiting_rows([batch("d", "c"), batch("b", "e", "a", starts_in_s=7.0)], requests, QueueFilter())
    groups = [
        (one.lengths, one.tenant, [(r.job.id, r.starts_in_s) for r in one.requests])
        for one in waiting_groups(rows, QueueFilter())
    ]
    assert groups == [
        ("1 to 16", "acme", [("a", 7.0)]),
        ("17 to 64", "acme", [("c", 0.0), ("b", 7.0)]),
        ("17 to 64", "other", [("e", 7.0)]),
        ("4,097 or more", "acme", [("d", 0.0)]),
    ]
    (of_other,) = waiting_groups(rows, QueueFilter(tenant="other"))
    assert (of_other.waited_s, of_other.predicted_tokens) == (9.0, 20)


def test_every_policy_says_why_the_first_is_first() -> None:
    (row,) = waiting_rows([batch("a")], REQUESTS, QueueFilter())
    assert "waited 4.0 s for 2.0 s of work" in why_first(policy_named("magnus"), row)
    (half,) = waiting_rows([batch("a", sealed=True)], REQUESTS, QueueFilter())
    assert why_first(policy_named("vs"), half).startswith("It is a half of a batch that ran out of memory")
    assert why_first(policy_named("one of yours"), row) == "The policy in force puts it first."

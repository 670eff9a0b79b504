"""Background requests wait behind all others where batches run to completion, and their batches end soon."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.published_costs import CHATGLM_6B_V100
from scheduling.policies.scls import SliceLevel
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Assignment
from scheduling.rank_correlation import RankCorrelation
from scheduling.sharing.background.background_last import BATCH_S, DECODED, MOST_SHOWN, BackgroundLast, bounded
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.sharing.tenant_shares import TenantShares
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import FLAT, SLOPED, a_line, a_request, a_worker, ids

BUSY = [a_worker(busy=True)]  # it takes nothing, and would serve a line of 10 tokens in 2.2 s


def one_by_one() -> BackgroundLast:
    """A policy that serves requests one by one, first come first served."""
    return BackgroundLast(lambda: Vanilla(5_000, 5_000))


def served(policy: BackgroundLast, now: float = 0.0) -> list[str]:
    """The requests that one idle worker is given, batch after batch."""
    order = []
    while len(policy):
        (batch,) = ids(policy.assign([a_worker(tokens=10_000)], now))["w"]
        order += batch
    return order


def test_others_go_first_then_the_longest_of_the_highest_priority() -> None:
    policy = one_by_one()
    for request in (a_line("short", 5), a_line("long", 500), a_line("first", 1, priority=1), a_request("other", 9.0)):
        policy.add(request, 9.0)
    assert [batch.requests[0].id for batch in policy.waiting(9.0)] == ["other", "first", "long", "short"]
    assert served(policy, 9.0) == ["other", "first", "long", "short"]


def test_requests_whose_deadline_nears_wait_among_the_others_until_it_is_lost() -> None:
    policy = one_by_one()
    for request in (a_line("due", job="due", deadline_at=100.0), a_line("gone", job="due", deadline_at=100.0)):
        policy.add(request, 0.0)
    policy.add(a_line("later", 20, job="later", deadline_at=300.0), 0.0)
    assert policy.discard("gone")
    policy.add(a_request("other", 80.0), 80.0)
    for now, first in ((50.0, "other"), (90.0, "due"), (97.0, "other")):  # 2.2 s are too many for the last three
        assert policy.assign(BUSY, now) == []
        assert (policy.wake_at(now) or 0.0) > now
        assert next(iter(policy.waiting(now))).requests[0].id == first
    policy.add(a_line("late", job="due", deadline_at=100.0), 97.0)
    order = served(policy, 98.0)
    assert (order[0], sorted(order)) == ("other", ["due", "late", "later", "other"])


def test_of_requests_without_a_job_those_whose_deadline_nears_go_ahead() -> None:
    policy = one_by_one()
    for request in (a_line("soon", deadline_at=100.0), a_line("later", 20, deadline_at=1e6)):
        policy.add(request, 0.0)
    policy.assign(BUSY, 90.0)
    policy.add(a_request("other", 91.0), 91.0)
    assert served(policy, 91.0) == ["soon", "other", "later"]


def test_a_job_that_is_lost_leaves_another_ahead() -> None:
    policy = one_by_one()
    for job, deadline_at in (("due", 100.0), ("next", 104.0)):
        policy.add(a_line(job, job=job, deadline_at=deadline_at), 0.0)
    for now in (90.0, 94.0, 97.0):
        policy.assign(BUSY, now)
    policy.add(a_request("other", 98.0), 98.0)
    assert served(policy, 98.0) == ["next", "other", "due"]


def test_lines_that_come_once_their_job_is_ahead_go_ahead_too_and_can_be_discarded() -> None:
    policy = one_by_one()
    policy.add(a_line("first", deadline_at=100.0), 0.0)
    policy.assign(BUSY, 90.0)
    policy.add(a_line("second", at=90.5, deadline_at=100.0), 90.5)
    policy.add(a_line("third", at=90.6, deadline_at=100.0), 90.6)
    assert policy.discard("third")
    policy.add(a_request("other", 91.0), 91.0)
    assert served(policy, 91.0) == ["first", "second", "other"]
    assert not policy._ahead


def test_a_request_that_ran_out_of_memory_while_its_deadline_neared_waits_among_the_others_until_it_is_lost() -> None:
    policy = one_by_one()
    for name in ("one", "two"):
        policy.add(a_line(name, job="due", deadline_at=100.0), 0.0)
    (batch,) = policy.assign([a_worker(tokens=10_000)], 0.0)
    policy.assign(BUSY, 90.0)  # the one that still waits goes ahead
    policy.out_of_memory(batch, 90.0)
    policy.add(a_request("other", 90.0), 90.0)
    assert [waiting.requests[0].id for waiting in policy.waiting(90.0)] == ["one", "two", "other"]
    policy.assign(BUSY, 97.0)
    assert next(iter(policy.waiting(97.0))).requests[0].id == "other"
    assert sorted(served(policy, 98.0)) == ["one", "other", "two"]


def test_where_rows_do_not_join_only_idle_workers_get_background_requests() -> None:
    policy = one_by_one()
    policy.add(a_line("line"), 0.0)
    assert policy.assign([a_worker("busy", busy=True)], 0.0) == []
    assert ids(policy.assign([a_worker("busy", busy=True), a_worker("idle")], 0.0)) == {"idle": [["line"]]}


def test_a_request_that_was_predicted_anew_waits_once_at_its_new_place() -> None:
    policy = one_by_one()
    for predicted in (500, 5, 5):
        policy.discard("again")
        policy.add(a_line("again", predicted), 0.0)
    policy.add(a_line("line", 50), 0.0)
    assert [batch.requests[0].id for batch in policy.waiting(0.0)] == ["line", "again"]


def test_lack_of_memory_is_told_to_the_policy_that_assigned() -> None:
    policy = one_by_one()
    line, other = a_line("line"), a_request("other")
    for request in (line, other):
        policy.out_of_memory(Assignment("w", (request,)), 0.0)
    policy.set_rank_correlation(RankCorrelation(0.5))
    assert served(policy) == ["other", "line"]


def test_tenants_share_by_their_weights_in_front_and_in_the_background() -> None:
    policy = BackgroundLast(lambda: TenantShares(lambda: Vanilla(5_000, 5_000)))
    policy.set_weights({"heavy": 3.0})
    for n in range(20):
        for tenant in ("heavy", "light"):
            policy.add(replace(a_request(f"{tenant} {n}", predicted=10), tenant=tenant), 0.0)
            policy.add(a_line(f"{tenant} line {n}", tenant=tenant), 0.0)
    order = served(policy)
    assert 14 <= sum(name.startswith("heavy") for name in order[:20]) <= 16
    assert 14 <= sum(name.startswith("heavy") for name in order[40:60]) <= 16


def test_a_tenants_own_bulk_job_does_not_count_against_its_other_requests() -> None:
    policy = BackgroundLast(lambda: TenantShares(lambda: Vanilla(5_000, 5_000)))
    for n in range(20):
        policy.add(a_line(f"line {n}", 500, tenant="a"), 0.0)
    served(policy)
    for n in range(10):
        for tenant in "ab":
            policy.add(a_request(f"{tenant} {n}", tenant=tenant), 1.0)
    assert sum(name.startswith("a") for name in served(policy, 1.0)[:10]) == 5


def test_a_policy_is_shown_what_fills_the_idle_workers_and_the_rest_waits_in_turn() -> None:
    policy = one_by_one()
    for n in range(2 * MOST_SHOWN):
        policy.add(a_line(f"a{n:05}", 90), 0.0)
    assert len(policy.assign([a_worker(tokens=10_000), a_worker("busy", busy=True)], 0.0)) == 1
    assert len(policy._background.policy) == 799  # of 100 tokens each, eight times the memory
    policy.assign([a_worker(tokens=10**6)], 0.0)  # a hundred
    assert len(policy._background.policy) == MOST_SHOWN - 100
    assert len(policy) == 2 * MOST_SHOWN - 101


def test_a_policy_that_assigns_all_it_sees_gives_no_worker_more_than_fills_it() -> None:
    policy = BackgroundLast(lambda: SliceLevel(128))
    for n in range(100):
        policy.add(a_line(f"a{n:02}", 90, length=910), 0.0)
    given = policy.assign([a_worker("idle", tokens=10_000), a_worker("busy", busy=True)], 0.0)
    assert {batch.worker for batch in given} == {"idle"}
    (batch,) = given
    assert batch.iteration_limit == 128  # its own
    assert len(policy) == len(policy._background.queue) == 100 - len(batch.requests)


def test_unfinished_lines_of_a_bounded_batch_wait_again() -> None:
    policy = one_by_one()
    policy.add(a_line("long", 500, limit=500), 0.0)
    (batch,) = policy.assign([a_worker()], 0.0)
    assert batch.iteration_limit == 79
    policy.add(replace(batch.requests[0], generated=79), 8.0)
    (again,) = policy.assign([a_worker()], 8.0)
    assert again.requests[0].generated == 79


@pytest.mark.parametrize(
    ("length", "iterations"),
    [
        (1000, 70),  # prefilled for 1 s, so 7 s are left for iterations of 0.1 s
        (4000, 80),  # prefilled for 4 s, and decoding takes at least twice as long
    ],
)
def test_a_batch_runs_for_some_seconds_and_long_enough_for_its_prefill(length: int, iterations: int) -> None:
    batch = bounded(Assignment("w", (a_request(length=length, predicted=500),)), FLAT)
    assert batch.iteration_limit == iterations
    assert batch.estimated_s == pytest.approx(0.001 * length + 0.1 * iterations)


def test_a_limit_of_the_policy_or_of_its_rows_stays() -> None:
    own = Assignment("w", (a_request(predicted=500),), iteration_limit=200)
    assert bounded(own, FLAT) is own
    short = bounded(Assignment("w", (a_request(predicted=5, limit=7),)), FLAT)
    assert short.iteration_limit == 7
    assert short.estimated_s == pytest.approx(0.01 + 0.5)


@given(st.integers(1, 40), st.integers(1, 4000), st.integers(1, 2000))
def test_no_batch_takes_much_longer_than_the_bound(size: int, length: int, predicted: int) -> None:
    requests = tuple(a_request(str(n), length=length, predicted=predicted, limit=4000) for n in range(size))
    batch = bounded(Assignment("w", requests), SLOPED)
    assert batch.iteration_limit is not None
    decoded_s = batch.iteration_limit * SLOPED.decode_step_s(size, length)
    prefill_s = SLOPED.prefill_s(size, length)
    assert decoded_s <= max(BATCH_S - prefill_s, DECODED * prefill_s) + 1e-6 or batch.iteration_limit == 1


def test_a_small_job_does_not_wait_for_a_long_batch_of_another_tenant() -> None:
    lines = [a_line(f"a{n:03}", 400, length=30, tenant="a", job="a") for n in range(100)]
    small = a_line("b", 10, at=5.0, length=30, tenant="b", job="b")
    policy = make_policy("magnus", PolicySettings())
    fleet = [Instance("w", CHATGLM_6B_V100.memory)]
    arrivals = [*(Arrival(line, 400) for line in lines), Arrival(small, 10)]
    trace = simulate(policy, arrivals, fleet, EngineCosts(CHATGLM_6B_V100.curves), seed=1)
    assert len(trace.answers) == 101
    assert trace.answers["b"].finished_at < 5.0 + 2 * BATCH_S  # a batch that runs, and one of the equally served tenant

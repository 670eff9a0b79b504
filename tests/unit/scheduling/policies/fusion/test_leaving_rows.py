"""Rows that leave for waiting requests, under `favour=goodput`."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policies.fusion.leaving_rows import MOST_COMPARED
from scheduling.policies.fusion.priority_key import FAVOURS
from scheduling.policy import Assignment, RunningRow
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import FLAT, a_paged_worker, a_request, a_row

LONG = a_row("long", length=20, generated=20, predicted=220)  # 200 tokens are left
SHORT = a_request("short", at=1.0)  # 10 tokens to prefill and 10 to generate


def a_policy(favour: str = "goodput") -> Fusion:
    return Fusion(FAVOURS[favour])


def decided(row: RunningRow, waiting: Request, now: float = 1.0, tokens: int = 235) -> list[Assignment]:
    policy = a_policy()
    policy.add(waiting, now)
    return policy.assign([a_paged_worker(tokens, [row])], now)


def left_and_joined(assignments: Sequence[Assignment]) -> tuple[list[str], list[str]]:
    left = [row_id for one in assignments for row_id in one.preempts]
    return left, [request.id for one in assignments for request in one.requests]


def test_a_long_row_leaves_for_a_short_request_that_fits_nowhere() -> None:
    assert left_and_joined(decided(LONG, SHORT)) == (["long"], ["short"])


@pytest.mark.parametrize("favour", ["mean", "tail"])
def test_no_row_leaves_unless_short_answers_are_favoured(favour: str) -> None:
    policy = a_policy(favour)
    policy.add(SHORT, 1.0)
    assert policy.assign([a_paged_worker(235, [LONG])], 1.0) == []


def test_no_row_leaves_for_a_request_that_fits() -> None:
    assert left_and_joined(decided(LONG, SHORT, tokens=1000)) == ([], ["short"])


def test_no_row_leaves_for_a_request_that_is_not_far_shorter() -> None:
    assert decided(LONG, a_request("as long", at=1.0, predicted=100)) == []


def test_no_row_leaves_if_the_request_would_not_fit_even_then() -> None:
    beginning = a_row("beginning", length=100, generated=0, predicted=400)  # it has generated nothing, so it stays
    policy = a_policy()
    policy.add(SHORT, 1.0)
    assert policy.assign([a_paged_worker(155, [LONG, beginning])], 1.0) == []
    assert left_and_joined(policy.assign([a_paged_worker(1000, [LONG])], 1.0)) == ([], ["short"])


@pytest.mark.parametrize(("now", "left"), [(79.0, ["long"]), (81.0, [])])
def test_a_row_stays_that_would_be_due_as_soon_as_it_waited(now: float, left: list[str]) -> None:
    # 200 iterations of 0.1 s are left; a request is due once it has waited for four times as long
    assert left_and_joined(decided(LONG, replace(SHORT, arrived_at=now), now=now))[0] == left


@pytest.mark.parametrize(("generated", "left"), [(19, []), (20, ["long"])])
def test_a_row_leaves_again_only_with_as_many_new_tokens_as_it_had(generated: int, left: list[str]) -> None:
    again = RunningRow(replace(LONG.request, generated=20, predicted=500), 20 + generated, 0.0)
    assert left_and_joined(decided(again, SHORT))[0] == left


@pytest.mark.parametrize(("priority", "left"), [(0, ["long"]), (1, [])])
def test_a_row_of_a_higher_priority_stays(priority: int, left: list[str]) -> None:
    row = replace(LONG, request=replace(LONG.request, priority=priority))
    assert left_and_joined(decided(row, SHORT))[0] == left


def test_beside_a_row_that_stays_another_leaves_for_the_same_request() -> None:
    stays = a_row("stays", length=20, generated=20, predicted=260, priority=1)
    policy = a_policy()
    policy.add(SHORT, 1.0)
    policy.add(a_request("less short", at=1.0, predicted=14), 1.0)
    assert left_and_joined(policy.assign([a_paged_worker(455, [LONG, stays])], 1.0)) == (["long"], ["short"])


@pytest.mark.parametrize(("stay", "left"), [(MOST_COMPARED - 1, ["long"]), (MOST_COMPARED, [])])
def test_a_decision_looks_past_a_bounded_number_of_rows_that_stay(stay: int, left: list[str]) -> None:
    rows = [a_row(f"stays {n}", length=20, generated=20, predicted=220, priority=1) for n in range(stay)]
    policy = a_policy()
    policy.add(SHORT, 1.0)
    assert left_and_joined(policy.assign([a_paged_worker(240 * (stay + 1) - 5, [*rows, LONG])], 1.0))[0] == left


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_requests_that_delay_the_others_alike_a_row_leaves_for_the_first(order: tuple[int, int]) -> None:
    equal = replace(SHORT, id="first", arrived_at=0.8), replace(SHORT, id="second", arrived_at=0.9, predicted=12)
    predicted_by_the_engine = replace(LONG, request=replace(LONG.request, predicted_at=20))
    policy = a_policy()
    policy.set_rank_correlation(RankCorrelation(0.0))
    for index in order:
        policy.add(equal[index], 1.0)
    assigned = policy.assign([a_paged_worker(235, [predicted_by_the_engine])], 1.0)
    assert left_and_joined(assigned) == (["long"], ["first"])


def test_no_row_leaves_where_workers_can_do_different_things() -> None:
    policy, other = a_policy(), a_paged_worker(235, [replace(LONG, request=replace(LONG.request, id="other"))])
    policy.add(SHORT, 1.0)
    assert policy.assign([a_paged_worker(235, [LONG]), replace(other, lacks=frozenset({"logprobs"}))], 1.0) == []


def test_a_row_that_came_back_without_its_tokens_stays_from_then_on() -> None:
    policy = a_policy()
    policy.add(SHORT, 1.0)
    assert left_and_joined(policy.assign([a_paged_worker(235, [LONG])], 1.0))[0] == ["long"]
    policy.add(LONG.request, 1.0)  # its server cannot resume it
    assert left_and_joined(policy.assign([a_paged_worker(235)], 1.0)) == ([], ["long"])
    policy.add(replace(SHORT, id="second"), 1.0)
    assert policy.assign([a_paged_worker(235, [LONG])], 1.0) == []


def test_no_row_leaves_for_a_background_request() -> None:
    assert decided(LONG, replace(SHORT, tier="flex")) == []


def test_no_further_row_leaves_while_one_that_was_told_to_leave_still_runs() -> None:
    policy, other, joined = (
        a_policy(),
        a_row("other", length=20, generated=20, predicted=219),
        RunningRow(SHORT, 0, 1.0),
    )
    policy.add(SHORT, 1.0)
    assert left_and_joined(policy.assign([a_paged_worker(470, [LONG, other])], 1.0)) == (["long"], ["short"])
    policy.add(replace(SHORT, id="second"), 1.0)
    assert policy.assign([a_paged_worker(470, [LONG, other, joined])], 1.0) == []
    once_it_is_gone = policy.assign([a_paged_worker(235, [other, joined])], 1.0)
    assert left_and_joined(once_it_is_gone) == (["other"], ["second"])


def test_a_row_that_left_waits_behind_shorter_requests_until_it_is_due() -> None:
    for now, first in ((1.2, "later"), (1000.0, "long")):
        policy = a_policy()
        policy.add(SHORT, 1.0)
        policy.assign([a_paged_worker(235, [LONG])], 1.0)
        policy.add(replace(LONG.request, generated=20), 1.1)  # it comes back
        policy.add(a_request("later", at=now), now)
        assert left_and_joined(policy.assign([a_paged_worker(235)], now))[1][0] == first


def test_in_an_overload_each_request_is_answered_and_leaves_at_most_once_for_each_doubling() -> None:
    returns: dict[str, list[int]] = {}

    class Watched(Fusion):
        def add(self, request: Request, now: float) -> None:
            if request.generated:
                returns.setdefault(request.id, []).append(request.generated)
            super().add(request, now)

    short = [Arrival(a_request(f"s{n:03}", n / 4, predicted=10, upper=40), 10) for n in range(400)]
    long = [Arrival(a_request(f"l{n}", 2.0 * n, predicted=150, upper=600), 400) for n in range(20)]
    fleet = [Instance("w", a_paged_worker(1000).memory)]
    trace = simulate(Watched(FAVOURS["goodput"]), [*short, *long], fleet, EngineCosts(FLAT), seed=0, tick_s=0.1)
    assert len(trace.answers) == 420
    assert returns
    assert all(request_id.startswith("l") for request_id in returns)
    assert all(2 * before <= after for had in returns.values() for before, after in pairwise(had))

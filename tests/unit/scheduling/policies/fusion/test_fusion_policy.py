import pytest

from scheduling.costs import ServingCurves
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policy import RunningRow, Worker
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import RowLength
from tests.unit.scheduling.scheduling_builders import SLOPED, a_paged_worker, a_request, a_row, a_worker, add_all, ids

ONE = a_worker(tokens=30)  # one row of 10 + 10 tokens fits, two do not: 2 · 20
ROWS = [a_row(f"row{number}", predicted=200) for number in range(4)]
RUNNING = a_worker(costs=SLOPED, rows=ROWS)  # a join stops 4 rows for 43.6 ms each: 0.1744 s in all


def served(policy: Fusion, now: float, turns: int = 1) -> list[str]:
    """The requests that a worker for one row serves, one after the other, all at the same instant."""
    return [ids(policy.assign([ONE], now))["w"][0][0] for _ in range(turns)]


@pytest.mark.parametrize(
    ("length", "joins"), [(None, True), (RowLength(5, 60, 60), False), (RowLength(5, 10, 10), True)]
)
def test_memory_is_kept_for_what_a_running_row_is_expected_to_become_by_its_last_prediction(
    length: RowLength | None, joins: bool
) -> None:
    policy, request = Fusion(), a_request("row", predicted=10)
    row = RunningRow(request if length is None else length.of(request), 5, 0.0)
    policy.add(a_request("joiner", predicted=30), 0.0)
    # by the long prediction, the row still runs when the joiner ends, and has 45 tokens then beside the joiner's 40
    assert bool(policy.assign([a_paged_worker(tokens=80, rows=[row])], 60.0)) is joins


def test_a_higher_priority_goes_first_until_the_other_is_due() -> None:
    # alone, "old" would take 10 iterations of 0.1 s, so it is due once it has waited 2 · 1 s
    for now, first in ((1.9, "high"), (2.0, "old")):
        policy = Fusion()
        add_all(policy, [a_request("old"), a_request("high", at=1.0, priority=1)])
        assert served(policy, now) == [first]


def test_requests_of_a_length_that_are_all_due_go_to_different_idle_workers() -> None:
    policy = Fusion()
    add_all(policy, [a_request(f"r{number}", at=float(number)) for number in range(3)])
    assert ids(policy.assign([a_worker(name) for name in "abc"], 1e4)) == {"a": [["r0"]], "b": [["r1"]], "c": [["r2"]]}


def test_requests_that_would_miss_their_deadline_go_first_the_earliest_deadline_before_the_others() -> None:
    deadlines = {"none": None, "later": 3.0, "earlier": 2.5, "far": 1000.0}
    policy = Fusion()
    add_all(policy, [a_request(name, deadline_at=deadline_at) for name, deadline_at in deadlines.items()])
    policy.add(a_request("nothing", at=1.0, priority=1), 1.0)
    assert served(policy, 1.0, 3) == ["earlier", "later", "nothing"]


def test_a_deadline_that_is_missed_anyway_counts_no_more() -> None:
    policy = Fusion()
    # 10 iterations of 0.1 s: at 1.0 it cannot be kept any more
    add_all(policy, [a_request("first"), a_request("missed", at=0.5, deadline_at=1.9)])
    assert served(policy, 1.0, 2) == ["first", "missed"]


def test_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    policy = Fusion()
    add_all(policy, [a_request(f"a{number}", tenant="a") for number in range(4)])
    add_all(policy, [a_request(f"b{number}", at=0.1, tenant="b") for number in range(2)])
    policy.assign([a_worker(tokens=30, rows=[a_row("row")])], 0.1)  # full; from here on the policy knows a worker
    shown = [request.id for batch in policy.waiting(0.1) for request in batch.requests]
    assert shown == ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert served(policy, 0.1, 6) == shown


def test_a_pause_earns_a_tenant_no_credit() -> None:
    policy = Fusion()
    add_all(policy, [a_request(f"a{number}", tenant="a") for number in range(8)])
    served(policy, 0.0, 4)
    add_all(policy, [a_request(f"b{number}", at=1.0, tenant="b") for number in range(4)])
    assert served(policy, 1.0, 4) == ["a4", "b0", "a5", "b1"]


def test_while_a_less_served_tenants_request_fits_nowhere_others_go_ahead_by_no_more_than_it_takes() -> None:
    policy = Fusion()
    policy.add(a_request("large", length=60, predicted=20, tenant="a"), 0.0)
    add_all(policy, [a_request(f"b{number}", length=10, predicted=5, tenant="b") for number in range(20)])
    part = a_paged_worker(100, rows=[a_row("row", length=55, generated=5)])  # 15 tokens fit beside it, 80 do not
    went_ahead = [len(one.requests) for turn in range(10) for one in policy.assign([part], float(turn))]
    assert sum(went_ahead) == 6  # the sixth makes it 90 of 80 tokens
    assert "large" in ids(policy.assign([a_paged_worker(100)], 10.0))["w"][0]


def test_nobody_waits_for_a_tenant_whose_requests_no_worker_could_take() -> None:
    policy = Fusion()
    policy.add(a_request("larger than any", length=100, predicted=20, tenant="a"), 0.0)
    add_all(policy, [a_request(f"b{number}", length=10, predicted=5, tenant="b") for number in range(20)])
    went_ahead = [len(one.requests) for turn in range(20) for one in policy.assign([a_paged_worker(100)], float(turn))]
    assert sum(went_ahead) == 20


@pytest.mark.parametrize(("tau", "first"), [(None, "s0"), (0.9, "s0"), (0.05, "long"), (-0.5, "long")])
def test_predictions_change_the_order_only_if_they_rank_requests_rightly(tau: float | None, first: str) -> None:
    policy = Fusion()
    policy.set_rank_correlation(RankCorrelation(tau))
    policy.add(a_request("long", predicted=20), 0.0)
    add_all(policy, [a_request(f"s{number}", at=1.0, predicted=6) for number in range(50)])
    assert served(policy, 1.0) == [first]


@pytest.mark.parametrize(("by_prompts", "first"), [(True, "s0"), (False, "long")])
def test_prompts_change_the_order_only_if_they_rank_requests_rightly(by_prompts: bool, first: str) -> None:
    policy = Fusion()
    policy.set_rank_correlation(RankCorrelation(0.9, by_prompts))
    policy.add(a_request("long", length=25, predicted=2), 0.0)
    add_all(policy, [a_request(f"s{number}", at=0.1, length=1, predicted=2) for number in range(50)])
    assert served(policy, 0.1) == [first]


@pytest.mark.parametrize("by_prompts", [True, False])
@pytest.mark.parametrize("first", ["short", "long"])
def test_prompts_that_do_not_change_the_order_still_decide_between_workers(first: str, by_prompts: bool) -> None:
    policy, lengths = Fusion(), {"short": 20, "long": 1000}
    policy.set_rank_correlation(RankCorrelation(0.9, by_prompts))
    add_all(policy, [a_request(name, 0.1 * (name != first), length) for name, length in lengths.items()])
    costs = ServingCurves(prefill=(0.001, 0.0, 0.0, 0.0), decode=(1e-4, 0.0, 0.0, 0.001))
    rows = {name: [a_row(f"{name} {n}", length) for n in (0, 1)] for name, length in lengths.items()}
    workers = [a_worker(f"of {name} rows", 40_000, costs, rows=rows[name]) for name in lengths]
    assert ids(policy.assign(workers, 0.2)) == {"of short rows": [["short"]], "of long rows": [["long"]]}


@pytest.mark.parametrize(
    ("row", "joins"),
    [
        # the row ends after one iteration; then the joiner alone needs 10 + 60 tokens
        (RunningRow(a_request("row", length=49, predicted=2), 1, 0.0), True),
        # 40 tokens of 10 predicted: 24 more are predicted, so that two rows need 2 · (55 + 24)
        (RunningRow(a_request("row", length=15, predicted=10, upper=40), 40, 0.0), False),
    ],
)
def test_a_row_that_outlives_its_prediction_is_predicted_again(row: RunningRow, joins: bool) -> None:
    policy = Fusion()
    policy.add(a_request(predicted=60), 0.0)
    assert bool(policy.assign([a_worker(tokens=150, rows=[row])], 0.0)) == joins


def test_a_joiner_is_buffered_until_its_waiting_has_cost_half_of_a_join() -> None:
    policy = Fusion()
    policy.add(a_request(), 0.0)
    assert policy.assign([RUNNING], 0.0) == []
    assert len(policy) == 1
    assert policy.wake_at(0.0) == pytest.approx(0.0872)
    assert [[r.id for r in batch.requests] for batch in policy.waiting(0.0)] == [["r"]]
    assert policy.assign([RUNNING], 0.08) == []
    assert ids(policy.assign([RUNNING], 0.09)) == {"w": [["r"]]}
    assert (len(policy), policy.wake_at(0.09)) == (0, None)


def test_a_joiner_may_be_discarded_while_it_is_held() -> None:
    policy = Fusion()
    add_all(policy, [a_request("a"), a_request("b")])
    policy.assign([RUNNING], 0.0)
    assert policy.discard("a")
    assert not policy.discard("a")
    assert ids(policy.assign([RUNNING], 1.0)) == {"w": [["b"]]}


def test_no_decision_is_due_for_joiners_that_are_gone() -> None:
    policy = Fusion()
    policy.add(a_request("a"), 0.0)
    policy.assign([RUNNING], 0.0)
    policy.discard("a")
    policy.assign([RUNNING], 0.01)
    assert policy.wake_at(0.01) is None


def test_a_joiner_goes_elsewhere_when_its_worker_is_gone_or_has_no_memory_left() -> None:
    for later in ([], [a_worker(costs=SLOPED, tokens=60, rows=ROWS)]):  # 5 · 13 tokens are more than 60
        policy = Fusion()
        policy.add(a_request(), 0.0)
        policy.assign([RUNNING], 0.0)
        assert ids(policy.assign([*later, a_worker("other")], 0.01)) == {"other": [["r"]]}


def a_full_worker(name: str = "w") -> Worker:
    """Admits a row of 10 tokens, 2 · 52 of 200, but not one of 120, 2 · 122."""
    return a_worker(name, tokens=200, rows=[a_row(length=49, predicted=20)])


def test_a_worker_is_reserved_for_a_request_that_is_due_and_fits_nowhere() -> None:
    policy, worker = Fusion(), a_full_worker()
    policy.add(a_request("big", length=120, predicted=30), 0.0)
    policy.add(a_request("s0", at=5.9), 5.9)
    assert ids(policy.assign([worker], 5.9)) == {"w": [["s0"]]}
    assert policy.assign([worker], 6.0) == []  # due: 30 iterations of 0.1 s, twice
    policy.add(a_request("s1", at=6.1, predicted=30), 6.1)
    assert policy.assign([worker], 6.1) == []
    assert ids(policy.assign([worker, a_full_worker("v")], 6.2)) == {"v": [["s1"]]}  # elsewhere it may
    policy.add(a_request("s2", at=6.3, predicted=30, tenant="other"), 6.3)
    assert policy.assign([worker], 6.3) == []
    assert ids(policy.assign([a_worker(tokens=200)], 8.0)) == {"w": [["big"]]}
    assert ids(policy.assign([worker], 8.0)) == {"w": [["s2"]]}


@pytest.mark.parametrize("gone", ["the request", "the worker"])
def test_a_worker_is_reserved_no_longer_than_it_lives_and_the_request_waits(gone: str) -> None:
    policy = Fusion()
    policy.add(a_request("big", length=120, predicted=30), 0.0)
    assert policy.assign([a_full_worker()], 12.0) == []
    policy.add(a_request("small", at=12.1), 12.1)
    if gone == "the request":
        policy.discard("big")
        assert ids(policy.assign([a_full_worker()], 12.2)) == {"w": [["small"]]}
    else:
        assert ids(policy.assign([a_full_worker("v")], 12.2)) == {"v": [["small"]]}


def test_a_request_that_comes_behind_another_when_predicted_anew_keeps_no_worker_empty() -> None:
    policy = Fusion()
    policy.add(a_request("big", at=1.0, length=120, predicted=30), 1.0)
    assert policy.assign([a_full_worker()], 13.0) == []  # the worker is reserved
    policy.add(a_request("early", at=0.5, length=120, predicted=60), 13.0)
    policy.discard("big")
    policy.add(a_request("big", at=1.0, length=120, predicted=60), 13.0)
    assert ids(policy.assign([a_worker(tokens=200)], 14.0)) == {"w": [["early"]]}


def test_the_queue_is_shown_by_arrival_before_any_worker_is_known() -> None:
    policy = Fusion()
    add_all(policy, [a_request("b", at=1.0), a_request("a", at=1.0), a_request("c", at=0.5)])
    shown = [(batch.requests[0].id, batch.estimated_s) for batch in policy.waiting(2.0)]
    assert shown == [("c", 0.0), ("a", 0.0), ("b", 0.0)]


def test_the_queue_is_shown_in_batches_that_fit_a_worker() -> None:
    policy = Fusion()
    full = a_worker(tokens=60, rows=[a_row("row", length=55)])
    add_all(policy, [a_request(str(number), at=number / 10) for number in range(4)])
    assert policy.assign([full], 0.3) == []
    # 3 · (10 + 10) tokens; a prefill of 30 ms and 10 iterations of 0.1 s
    shown = list(policy.waiting(0.3))
    assert [[request.id for request in batch.requests] for batch in shown] == [["0", "1", "2"], ["3"]]
    assert [batch.estimated_s for batch in shown] == pytest.approx([1.03, 1.01])


def test_a_request_that_comes_back_unfinished_goes_before_all_that_wait() -> None:
    policy = Fusion()
    add_all(policy, [a_request(str(number), at=0.5) for number in range(3)])
    policy.add(a_request("back", at=0.4, length=5, generated=5), 2.0)
    assert served(policy, 2.5) == ["back"]

from collections.abc import Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks.rivals.__main__ import main
from benchmarks.rivals.cells import POLICIES, Run, compared
from benchmarks.rivals.iteration_level import GUARD_S, IterationLevel
from benchmarks.rivals.published_rules import RIVALS, gittins_index
from scheduling.policy import RunningRow
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import a_paged_worker, a_request, a_row, add_all, ids

NOW = 10.0
FIRST, SHORT, LONG = a_request("first", 0, 100, 300), a_request("short", 5, 10, 20), a_request("long", 6, 400, 900)
BEGUN = a_request("begun", 1, 100, 300, generated=100)
ALMOST_DONE = a_request("almost done", 7, 100, 130, generated=125)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fcfs", ["first", "begun", "short", "long", "almost done"]),
        ("past-future", ["first", "begun", "short", "long", "almost done"]),
        # by predicted length: 20, 130, 300, 300, 900
        ("ltr", ["short", "almost done", "first", "begun", "long"]),
        # by what is left: 5 of 130, 20, 200 of 300, 300, 900
        ("trail", ["almost done", "short", "begun", "first", "long"]),
        # certain predictions: the index is 1 / what is left; 125 and 100 tokens count as 64
        ("gittins", ["short", "almost done", "begun", "first", "long"]),
        # 1.6 s of age make 51.3 s of boost, 25.6 s make 6.5; a long answer is not known to be long
        ("uniboost", ["first", "short", "long", "begun", "almost done"]),
        # queue 0, then the prompt that skips it, then those with six quanta of 16 tokens and more
        ("mlfq", ["first", "short", "long", "begun", "almost done"]),
        ("nested-wait", ["first", "begun", "short", "long", "almost done"]),
        ("lmetric", ["first", "begun", "short", "long", "almost done"]),
        # seconds waited for a token to prefill: 5 / 10, 10 / 100, 9 / 200, 3 / 225, 4 / 400
        ("hrrn", ["short", "first", "begun", "almost done", "long"]),
    ],
)
def test_a_rule_orders_the_waiting_requests_as_its_paper_says(name: str, expected: Sequence[str]) -> None:
    policy = RIVALS[name]()
    add_all(policy, [LONG, BEGUN, ALMOST_DONE, SHORT, FIRST])
    assert [request.id for batch in policy.waiting(NOW) for request in batch.requests] == expected


def test_gittins_prefers_the_answer_that_may_end_at_once_to_a_certain_one_of_equal_median() -> None:
    assert gittins_index(100, 1000, 2000, 0) > gittins_index(100, 100, 2000, 0)


def test_vtc_serves_the_client_that_was_served_least() -> None:
    policy = RIVALS["vtc"]()
    of_a, of_b = (replace(a_request(name, length=50), application=name) for name in ("a", "b"))
    running = RunningRow(replace(a_request("row", limit=100), application="a"), 30, 0.0)  # 60 of a's service
    add_all(policy, [replace(of_a, id="earlier"), of_b, replace(of_b, id="later", arrived_at=1.0)])
    policy.assign([a_paged_worker(tokens=120, rows=[running])], NOW)  # `b` joins and costs its prompt of 50
    assert [one.id for batch in policy.waiting(NOW) for one in batch.requests] == ["later", "earlier"]


def test_a_short_answer_takes_the_place_of_the_row_that_ranks_last() -> None:
    policy = RIVALS["ltr"]()
    policy.add(SHORT, 5.0)
    rows = [a_row("middle", 100, predicted=300), a_row("longest", 100, predicted=900)]
    (assignment,) = policy.assign([a_paged_worker(tokens=225, rows=rows)], NOW)
    assert (assignment.preempts, [one.id for one in assignment.requests]) == (("longest",), ["short"])


def test_trail_keeps_a_row_that_has_most_of_its_answer() -> None:
    def leaves(generated: int) -> bool:
        policy = RIVALS["trail"]()
        policy.add(SHORT, 5.0)
        row = a_row("row", 100, generated, predicted=200)
        return bool(policy.assign([a_paged_worker(tokens=120 + generated, rows=[row])], NOW))

    assert leaves(generated=159)
    assert not leaves(generated=160)  # 0.8 of 200


def test_who_starves_goes_first_under_ltr() -> None:
    policy = RIVALS["ltr"]()
    add_all(policy, [SHORT, LONG, replace(SHORT, id="new", arrived_at=7 + GUARD_S)])
    waiting = [one.id for batch in policy.waiting(6.5 + GUARD_S) for one in batch.requests]
    assert waiting == ["short", "long", "new"]


def test_past_future_admits_by_the_peak_that_past_answers_give() -> None:
    def joins(past: int) -> bool:
        policy = RIVALS["past-future"]()
        assert isinstance(policy, IterationLevel)
        policy.seen.past = [past] * 10
        policy.add(FIRST, 0.0)
        return bool(policy.assign([a_paged_worker(tokens=600, rows=[a_row("row", 100, 1)])], NOW))

    assert joins(100)  # 101 + 99 tokens of the row and 100 + 99 of the joiner, of 570
    assert not joins(400)  # 500 + 500


def test_nested_wait_lets_a_group_join_running_rows_at_its_threshold() -> None:
    policy = RIVALS["nested-wait"]()
    worker = a_paged_worker(rows=[a_row()])
    add_all(policy, [a_request(f"{n}") for n in range(7)])
    assert not policy.assign([worker], NOW)
    policy.add(a_request("7"), NOW)
    (assignment,) = policy.assign([worker], NOW)
    assert (len(assignment.requests), assignment.iteration_limit) == (8, 128)


def test_lmetric_routes_by_new_tokens_times_rows() -> None:
    policy = RIVALS["lmetric"]()
    many = a_paged_worker(name="many", rows=[a_row("1"), a_row("2")])
    add_all(policy, [FIRST, SHORT])
    # `first` at w: 100 · 1, at many: 100 · 3; `short` at w: (10 + 100) · 2, at many: 10 · 3
    assert ids(policy.assign([many, a_paged_worker()], NOW)) == {"many": [["short"]], "w": [["first"]]}


def test_shortest_first_has_no_guard_for_long_requests() -> None:
    policy = RIVALS["shortest"]()
    long: Request = replace(LONG, arrived_at=-1e6)
    add_all(policy, [long, SHORT])
    assert ids(policy.assign([a_paged_worker(tokens=950)], NOW)) == {"w": [["short"]]}


def test_the_smallest_run_answers_every_request_and_compares_fusion_with_each_rival() -> None:
    arguments = "--workloads chat --loads 2 --predictions useless --seeds 1 --requests 30 --speeds 1 --processes 1"
    result = CliRunner().invoke(main, arguments.split(), catch_exceptions=False)
    assert all(name in result.output for name in POLICIES)
    assert "fusion is behind the best rival in" in result.output


def test_a_cell_says_where_fusion_keeps_its_aims() -> None:
    def row(policy: str, seed: int, **figures: float) -> dict[str, object]:
        kind = {"workload": "chat", "load": 1.0, "prediction": "useless", "policy": policy, "seed": seed}
        return kind | {"mean": 10.0, "p50": 10.0, "p99": 10.0, "goodput": 0.5} | figures

    rows = [row("fusion", 1, mean=10.1), row("fusion", 2, mean=10.3, goodput=0.6), row("fcfs", 1), row("fcfs", 2)]
    (cell,) = compared([*rows, row("ltr", 1, p50=8.0), row("ltr", 2, p50=8.0)])
    assert (cell["mean"]["kept"], cell["p99"]["kept"]) == (True, True)
    assert cell["goodput"]["ratio"] == pytest.approx(1.1)
    assert cell["p50"] == {"best": "ltr", "ratio": 1.25, "kept": False}


def test_equal_runs_have_equal_figures() -> None:
    run = Run("trail", "chat", 1.5, "tau 0.4", 1, None, 1.0, 40, (1.0, 0.25), "stalling")
    assert run.figures() == run.figures()

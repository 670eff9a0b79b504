"""A job goes ahead as its deadline nears, as far as it can still be met, and no longer once it is lost."""

import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.sharing.background.deadlines import (
    AHEAD_FROM,
    MARGIN_S,
    MOST_JUDGED,
    MOST_MOVED,
    RAMP_FROM,
    SOON_S,
    Deadlines,
    Work,
    boost,
    goes_ahead,
    needed_s,
    urgency,
    used_s,
)
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import FLAT, a_line, a_memory, a_request, a_worker, examples

SECONDS = st.floats(0.001, 1e7)
WORKERS = [a_worker("a", tokens=200), a_worker("b", tokens=400)]  # of 10 and 20 rows of 10 + 10 tokens


def work_of(*lines: int) -> Work:
    """The work of lines that generate so many tokens each."""
    work = Work()
    for number, tokens in enumerate(lines):
        work = work.plus(a_line(str(number), tokens))
    return work


def test_the_seconds_of_a_work_are_those_of_full_workers_and_of_its_longest_answer() -> None:
    # batches of 10 and 20 rows: prefill 0.1 and 0.2 s, 10 steps of 0.1 s, and 0.05 s until others join in their place
    rows_per_s = 10 / (0.1 + 1.0 + 0.05) + 20 / (0.2 + 1.0 + 0.05)
    assert needed_s(work_of(*[10] * 500), WORKERS) == pytest.approx(500 / rows_per_s + 1.1)
    assert needed_s(Work(), WORKERS) == 0.0
    assert needed_s(work_of(10), []) == math.inf
    assert used_s(work_of(*[10] * 500), WORKERS) == pytest.approx(2 * 500 / rows_per_s)
    assert used_s(work_of(10), []) == math.inf


@given(needed=SECONDS, left=SECONDS, later=SECONDS)
def test_the_same_work_is_the_more_urgent_the_less_time_is_left(needed: float, left: float, later: float) -> None:
    near, far = urgency(needed, min(left, later)), urgency(needed, max(left, later))
    assert near >= far * (1 - 1e-9)
    assert near >= needed / min(left, later)
    assert far <= 2 * needed / max(left, later) * (1 + 1e-9)


@given(one=st.floats(0, 3), other=st.floats(0, 3))
def test_the_weight_grows_with_the_urgency_and_what_is_lost_has_no_advantage(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 1.0 <= boost(low) <= 1 / RAMP_FROM
    if high > 1:
        assert (boost(high), goes_ahead(high)) == (1.0, False)
    else:
        assert boost(low) <= boost(high)
        assert goes_ahead(low) <= goes_ahead(high)
    assert boost(AHEAD_FROM) > boost(RAMP_FROM) == 1.0


def judged(deadlines: Deadlines, now: float) -> list[tuple[float, bool]]:
    return [(round(one.weight, 1), one.ahead) for one in deadlines.judge(WORKERS, now)]


def test_a_job_is_judged_shortly_before_its_advantage_grows_and_again_when_it_has_much_more_work() -> None:
    deadlines, instants = Deadlines(), []
    line = a_line("one", 10, deadline_at=1000.0)
    deadlines.add(line, 0.0)
    now = 0.0
    while judged(deadlines, now) == [(1.0, False)]:
        now = deadlines.wake_at(now) or math.inf
        instants.append(now)
    # one line takes the two workers 0.58 s, and 1.1 s to its end: a sixteenth of the fleet for 16 * 1.68 s, a quarter
    # for 4 * 1.68 s, both to 5 s before the deadline
    assert 995 - 16 * 1.68 < now < 995 - 4 * 1.68
    assert len(instants) < 25
    for number in range(2000):
        deadlines.add(a_line(f"more {number}", 10, deadline_at=1000.0), now)
    assert judged(deadlines, now) == [(1.0, False)]  # 2,001 lines take 82 s: it is lost


def test_a_job_without_a_waiting_line_or_time_is_forgotten() -> None:
    deadlines = Deadlines()
    served, late = a_line("served", deadline_at=1000.0), a_line("late", job="other", deadline_at=10.0)
    deadlines.add(served, 0.0)
    deadlines.add(late, 0.0)
    deadlines.remove(served)
    judged(deadlines, 0.0)
    judged(deadlines, 20.0)
    assert deadlines.wake_at(20.0) is None
    deadlines.remove(late)
    assert not deadlines.add(a_line("without"), 20.0)
    assert deadlines.wake_at(20.0) is None


def test_requests_whose_deadlines_all_differ_are_judged_and_moved_a_bounded_number_at_a_time() -> None:
    deadlines, ahead = Deadlines(), set[str]()
    near = math.ceil(2 * needed_s(work_of(*[10] * MOST_MOVED), WORKERS) + MARGIN_S)  # half of the fleet is needed
    for number in range(3 * MOST_MOVED):
        deadlines.add(a_line(str(number), 10, deadline_at=near + number / MOST_MOVED), 0.0)  # in three seconds
        deadlines.add(a_line(f"far {number}", 1, deadline_at=1e6 + 2 * number), 0.0)  # in as many seconds
    deadlines.add(a_line("late", 1, deadline_at=1e6), 0.0)
    decisions = 0
    while (deadlines.wake_at(0.0) or math.inf) == SOON_S:
        judgements = list(deadlines.judge(WORKERS, 0.0))
        assert 0 < len(judgements) <= MOST_JUDGED
        assert sum(len(one.moved) for one in judgements) <= MOST_MOVED
        ahead.update(moved.id for one in judgements if one.ahead for moved in one.moved)
        decisions += 1
    assert ahead == {str(number) for number in range(3 * MOST_MOVED)}
    assert decisions <= 3 * MOST_MOVED / MOST_JUDGED + 10
    ended = chain.from_iterable(deadlines.judge(WORKERS, now) for now in range(near, near + 9))
    assert sorted(moved.id for one in ended for moved in one.moved) == sorted(ahead)  # each once: their time is over


@examples(100)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0, 50), st.floats(0, 300), st.booleans()), min_size=1, max_size=30)
)
def test_every_judgement_follows_the_urgency_of_what_waits(drawn: list[tuple[int, float, float, bool]]) -> None:
    deadlines, waiting, now = Deadlines(), {}, 0.0
    for number, (tokens, later, window, leaves) in enumerate(drawn):
        now += later
        line = a_line(str(number), tokens, at=now, job=str(round(window) % 3), deadline_at=100.0 * (round(window) % 3))
        deadlines.add(line, now)
        waiting[line.id] = line
        if leaves:
            deadlines.remove(waiting.pop(next(iter(waiting))))
        for one in deadlines.judge(WORKERS, now):
            left_s = one.due.deadline_at - now
            lines = [line for line in waiting.values() if line.job == one.due.job[1]]
            if left_s <= 0 or not lines:
                assert (one.weight, one.ahead) == (1.0, False)
            else:
                least_s = max(line.remaining for line in lines) * 0.1
                assert one.ahead or least_s / left_s < AHEAD_FROM or least_s > left_s / 4
                assert not (one.ahead and least_s > left_s)


def simulated(window_s: float | None) -> tuple[float, float]:
    """When ten lines beside others that never leave a worker idle have ended, and the others' mean response time."""
    others = [Arrival(a_request(f"o{number:03}", 0.3 * number, 10, 20, limit=60), 20) for number in range(100)]
    lines = [
        Arrival(a_line(f"l{number}", 20, job="job", tenant="b", limit=60, deadline_at=window_s), 20)
        for number in range(10)
    ]
    policy = make_policy("magnus", PolicySettings(max_prompt_tokens=60, max_output_tokens=60))
    trace = simulate(policy, [*others, *lines], [Instance("w", a_memory(150))], EngineCosts(FLAT), seed=0)
    waited_s = [trace.answers[one.request.id].finished_at - one.request.arrived_at for one in others]
    return max(trace.answers[one.request.id].finished_at for one in lines), sum(waited_s) / len(waited_s)


def test_simulated_a_job_ends_within_a_window_that_can_be_met_and_one_that_cannot_costs_the_others_nothing() -> None:
    without, lost = simulated(None), simulated(5.0)
    assert lost == without
    assert simulated(30.0)[0] <= 30.0 < without[0]

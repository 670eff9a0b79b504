"""Background requests go round by tenant and by job in tokens, and within a job the longest first, aged."""

import pickle
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from scheduling.policy import RunningRow
from scheduling.rank_correlation import RankCorrelation
from scheduling.request import Job, Request, job_of
from scheduling.sharing.background.background_queue import AGE_S, COPIED, BackgroundQueue, unserved_tokens
from tests.unit.scheduling.scheduling_builders import a_line, a_row, examples


def with_lines(*lines: Request) -> BackgroundQueue:
    queue = BackgroundQueue()
    for line in lines:
        if not queue.has_job(job_of(line)):
            queue.begin(job_of(line), [])
        queue.add(line)
    return queue


def taken(queue: BackgroundQueue, at_once: int = 1) -> list[str]:
    order: list[str] = []
    while job := queue.next_job():
        order += [request.id for request in queue.take(job, at_once)]
    return order


def test_the_longest_answers_go_first_after_lines_of_higher_priority_and_of_similar_ones_the_longest_prompts() -> None:
    lines = [a_line("short", 5), a_line("long", 500), a_line("first", 1, priority=1), a_line("middle", 60)]
    queue = with_lines(*lines, a_line("text", 40, length=600))  # 32 to 63 tokens are similar
    assert [request.id for request in queue] == ["first", "long", "text", "middle", "short"]
    assert taken(queue) == ["first", "long", "text", "middle", "short"]


def test_a_line_that_has_waited_long_enough_goes_before_longer_ones() -> None:
    queue = with_lines(a_line("old", 5), a_line("long", 500, at=250 * AGE_S), a_line("later", 500, at=510 * AGE_S))
    assert taken(queue) == ["long", "old", "later"]


def test_while_predictions_do_not_rank_answers_the_shortest_prompts_go_first() -> None:
    queue = with_lines(a_line("long", 500, length=600), a_line("short", 5, length=20), a_line("first", priority=1))
    queue.set_rank_correlation(RankCorrelation(0.05))
    queue.add(a_line("middle", 900, length=300))
    assert [request.id for request in pickle.loads(pickle.dumps(queue))] == ["first", "short", "middle", "long"]
    assert taken(queue)[:2] == ["first", "short"]
    for line in (a_line("long", 500, length=600), a_line("middle", 900, length=300)):
        queue.begin(job_of(line), [])
        queue.add(line)
    queue.set_rank_correlation(RankCorrelation(0.5))
    assert taken(queue) == ["middle", "long"]


def test_jobs_of_a_tenant_take_turns_and_count_as_one_tenant() -> None:
    queue = with_lines(
        *(
            a_line(f"{tenant}{job}{n}", 90, tenant=tenant, job=job)
            for tenant, job in ("ax", "ay", "bz")
            for n in range(8)
        )
    )
    order = taken(queue)
    assert sorted(name[:2] for name in order[:8]) == ["ax"] * 2 + ["ay"] * 2 + ["bz"] * 4


def test_turns_are_counted_in_tokens_by_weight() -> None:
    queue = with_lines(
        *(a_line(f"a{n}", 190) for n in range(40)), *(a_line(f"b{n}", 40, tenant="b") for n in range(40))
    )
    queue.tenants.set_weights({"a": 2.0})
    order = taken(queue)[:30]
    assert 9 <= sum(name.startswith("a") for name in order) <= 11  # 200 tokens at weight 2 beside 50 at weight 1


def test_a_copy_of_a_long_queue_has_the_requests_that_would_be_taken_first() -> None:
    lines = [a_line(f"{job}{n}", n % 500 + 1, tenant=job) for job in "ab" for n in range(COPIED)]
    queue = with_lines(*lines)
    copied: BackgroundQueue = pickle.loads(pickle.dumps(queue))
    assert len(copied) == COPIED
    assert list(copied) == list(islice(queue, COPIED))
    assert copied.discard(next(iter(copied)).id)
    assert len(queue) == 2 * COPIED
    short = with_lines(*lines[:5])
    assert list(pickle.loads(pickle.dumps(short))) == list(short)


def test_a_job_that_comes_is_not_behind_what_others_still_have_running() -> None:
    queue = with_lines(*(a_line(f"a{n}", 90) for n in range(20)))
    queue.take(Job("a", ""), 10)
    rows = [RunningRow(a_line(f"row{n}", 90), 1, 0.0) for n in range(10)]
    queue.begin(Job("b", ""), rows)
    for n in range(10):
        queue.add(a_line(f"b{n}", 80, tenant="b"))
    assert taken(queue)[:9] == [f"b{n}" for n in range(9)]


def test_what_a_job_was_served_is_forgotten_once_it_has_ended_and_another_begins() -> None:
    queue = with_lines(a_line("x", job="x"), a_line("y", job="y"))
    assert taken(queue) == ["x", "y"]
    for number in range(100):
        job = Job("a", f"{number}")
        queue.begin(job, [], unended=[Job("a", "y"), Job("b", "x")])
        queue.add(a_line(f"{number}", job=job.id))
        queue.take(job, 1)
    assert queue.next_job([Job("a", "y"), Job("a", "99")]) == ("a", "y")
    assert set(queue._jobs["a"]._served) == {"y", "99"}


def test_only_background_rows_count_as_unserved() -> None:
    rows = [
        RunningRow(a_line("line", 90, job="x"), 30, 0.0),
        a_row(predicted=50),
        RunningRow(a_line("late", 5), 9, 0.0),
    ]
    assert unserved_tokens(rows) == {("a", "x"): 60, ("a", ""): 0}


def test_what_is_taken_in_turn_is_charged_and_bounded_in_tokens_and_number() -> None:
    queue = with_lines(*(a_line(f"{tenant}{n}", 90, tenant=tenant) for tenant in "ab" for n in range(9)))
    assert [one.id for one in queue.take_in_turn(301.0, 10)] == ["a0", "b0", "a1", "b1"]  # of 100 tokens each
    assert [one.id for one in queue.take_in_turn(1e6, 2)] == ["a2", "b2"]
    assert queue.take_in_turn(0.0, 5) == queue.take_in_turn(5.0, -1) == []
    assert (queue.tenants.served("a"), len(queue)) == (300.0, 12)


def test_what_is_put_back_is_charged_to_nobody() -> None:
    queue = with_lines(a_line("a1", 90), a_line("a2", 80), a_line("b", 10, tenant="b"))
    (request,) = queue.take(Job("a", ""), 1)
    assert queue.next_job() == ("b", "")
    queue.put_back(request)
    assert queue.next_job() == ("a", "")
    assert taken(queue) == ["a1", "b", "a2"]


@examples(50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 500)), max_size=40), st.data())
def test_each_request_leaves_once_however_it_leaves(drawn: list[tuple[str, str, int]], data: st.DataObject) -> None:
    lines = [a_line(f"{n}", tokens, tenant=tenant, job=job) for n, (tenant, job, tokens) in enumerate(drawn)]
    queue = with_lines(*lines)
    discarded = data.draw(st.sets(st.sampled_from(lines))) if lines else set()
    for line in discarded:
        assert queue.discard(line.id) == line
        assert queue.discard(line.id) is None
    expected = [request.id for request in queue]
    assert len(queue) == len(lines) - len(discarded) == len(expected)
    assert sorted(taken(queue, at_once=3)) == sorted(expected)
    assert not queue
    assert queue.jobs == []

"""Equal requests of a tenant are computed once, and each has its answer, whatever happens to the first of them."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.orm import Session

from models import client_requests
from models.leasing import batch_results
from models.leasing.batch_results import Answer
from models.leasing.leases import Lease
from models.operations import operator_jobs
from models.planning import twins
from models.tables import RequestStatus
from models.upkeep import invariants, reconciler
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage
from tests.integration.planner_stage import RULES

GROUP = b"equal"


def equal(stage: Stage, *names: str, **columns: Any) -> None:
    """Requests that are equal, in the order of their names."""
    for name in names:
        stage.request(name, **{"twin_sha256": GROUP, **columns})


def answer(stage: Stage, name: str, status: RequestStatus = RequestStatus.completed, **fields: Any) -> None:
    """Writes an answer, as the worker of its batch does."""
    (row,) = stage.sql("select batch_id from requests where id = :id", id=name)
    error = {"code": "server_error", "message": "no"} if status is RequestStatus.failed else None
    given: dict[str, Any] = {
        "text": "the answer",
        "tokens": 7,
        "reason": "eos",
        "ago_s": 0.0,
        "gpu_s": 2.0,
        "error": error,
    } | fields
    with stage.database.begin() as connection:
        batch_results.write_answers(connection, [Answer(Lease(row.batch_id, 0), name, status, **given)])
    stage.sql("update batches set status = 'finished', finished_at = clock_timestamp() where id = :id", id=row.batch_id)


def cancel(stage: Stage, name: str) -> None:
    with Session(stage.database) as session:
        client_requests.cancel(session, "acme", [name])


def remove(stage: Stage, name: str) -> None:
    with Session(stage.database) as session:
        assert client_requests.remove(session, "acme", name)


def waiting_for_nothing(stage: Stage) -> list[str]:
    with stage.database.connect() as connection:
        found = invariants.violations(connection, 0.0)
        return [name for one in found if one.invariant == "every twin waits for a request" for name in one.examples]


def test_one_of_equal_requests_is_computed_and_all_are_answered(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, "a", "b", "c", prompt_tokens=5)
    stage.request("other")
    leader.step()
    assert {one for _, names in stage.batches().values() for one in names} == {"a", "other"}
    assert stage.requests("status", "twin_of")["b"] == ("queued", "a")
    answer(stage, "a")
    leader.step()
    rows = stage.requests("status", "output_text", "output_tokens", "cached_tokens", "twin_of", "shared")
    assert rows["a"] == ("completed", "the answer", 7, None, None, False)
    assert rows["b"] == rows["c"] == ("completed", "the answer", 7, 5, "a", False)


def test_usage_counts_each_twin_as_a_request_and_what_was_computed_once(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, "a", "b", "c", prompt_tokens=5)
    leader.step()
    answer(stage, "a")
    leader.step()
    columns = "sum(requests), sum(prompt_tokens), sum(answer_tokens), sum(gpu_s)"
    assert [tuple(row) for row in stage.sql(f"select {columns} from usage_entries")] == [(3, 5, 7, 2.0)]


def test_an_answer_that_was_cut_off_is_shared_as_it_is(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, "a", "b")
    leader.step()
    answer(stage, "a", RequestStatus.incomplete, reason="limit")
    leader.step()
    assert set(stage.requests("status", "finish_reason").values()) == {("incomplete", "limit")}


def test_a_request_that_comes_while_an_equal_one_runs_waits_for_it(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, "a")
    leader.step()
    equal(stage, "b")
    leader.step()
    assert stage.requests("status", "twin_of")["b"] == ("queued", "a")
    answer(stage, "a")
    equal(stage, "c")  # nothing equal waits or runs any more
    leader.step()
    assert stage.requests("status", "twin_of") == {
        "a": ("completed", None),
        "b": ("completed", "a"),
        "c": ("in_progress", None),
    }


@pytest.mark.parametrize("end", [cancel, remove])
@pytest.mark.parametrize("which", ["a", "b", "c"])
def test_a_twin_that_is_cancelled_or_deleted_leaves_the_others_alone(
    stage: Stage, leader: Leader, which: str, end: Any
):
    equal(stage, "a", "b", "c")
    leader.step()
    end(stage, which)
    leader.step()
    stage.worker()
    leader.step()
    left = [name for name in "abc" if name != which]
    assert waiting_for_nothing(stage) == []
    assert stage.requests("status")[left[0]] == "in_progress"
    assert stage.requests("twin_of")[left[1]] is not None
    answer(stage, left[0])
    leader.step()
    assert [stage.requests("status")[name] for name in left] == ["completed"] * 2
    assert stage.requests("output_text").get(which) is None


def test_a_leader_that_a_process_of_an_older_release_deletes_is_followed_by_its_first_twin(
    stage: Stage, leader: Leader
):
    equal(stage, "a", "b", "c")
    leader.step()
    stage.sql("delete from requests where id = 'a'")
    assert waiting_for_nothing(stage) == []
    stage.worker()
    leader.step()
    assert stage.requests("status") == {"b": "in_progress", "c": "queued"}


def test_a_running_leader_that_is_cancelled_is_followed_by_its_first_twin(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, "a", "b", "c")
    leader.step()
    cancel(stage, "a")
    answer(stage, "a", text="half")
    leader.step()
    leader.step()
    assert stage.requests("status") == {"a": "cancelled", "b": "in_progress", "c": "queued"}
    answer(stage, "b")
    leader.step()
    assert stage.requests("status", "twin_of")["c"] == ("completed", "b")


def test_after_a_leader_was_answered_and_deleted_its_twin_is_computed(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, "a", "b")
    leader.step()
    answer(stage, "a")
    remove(stage, "a")
    leader.step()
    assert stage.requests("status", "twin_of") == {"b": ("in_progress", None)}


def test_if_a_leader_fails_each_twin_is_computed_by_itself(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, "a", "b", "c")
    leader.step()
    answer(stage, "a", RequestStatus.failed)
    leader.step()
    leader.step()
    assert stage.requests("status") == {"a": "failed", "b": "in_progress", "c": "in_progress"}


def test_a_twin_follows_no_request_that_may_end_later(stage: Stage, leader: Leader):
    equal(stage, "a")
    stage.sql("update requests set deadline_at = clock_timestamp() + interval '1 h'")
    equal(stage, "b")
    equal(stage, "c")
    stage.sql("update requests set deadline_at = clock_timestamp() + interval '1 min' where id = 'c'")
    leader.step()
    assert stage.requests("twin_of") == {"a": None, "b": "a", "c": None}


def test_a_leader_that_is_too_late_is_followed_by_its_first_twin(stage: Stage, leader: Leader):
    equal(stage, "a", "b")
    leader.step()
    stage.sql("update requests set deadline_at = clock_timestamp() - interval '1 s' where id = 'a'")
    with stage.database.begin() as connection:
        reconciler.expire_deadlines(connection)
    stage.worker()
    leader.step()
    leader.step()
    assert stage.requests("status") == {"a": "failed", "b": "in_progress"}


def test_requests_of_different_tenants_are_each_computed(stage: Stage, leader: Leader):
    equal(stage, "a")
    equal(stage, "b", tenant="other")
    leader.step()
    assert stage.requests("twin_of") == {"a": None, "b": None}


def test_twins_can_be_switched_off(stage: Stage):
    stage.worker()
    equal(stage, "a", "b")
    leader = Leader(stage.database, replace(RULES, shares_twins=False))
    leader.step()
    leader.resign()
    assert set(stage.requests("status").values()) == {"in_progress"}


def test_a_planner_that_begins_anew_leaves_followers_where_they_are(stage: Stage, leader: Leader):
    equal(stage, "a", "b")
    leader.step()
    leader.resign()
    stage.worker()
    later = Leader(stage.database, RULES)
    later.step()
    later.resign()
    assert stage.requests("status", "twin_of") == {"a": ("in_progress", None), "b": ("queued", "a")}


def test_requests_that_move_to_another_model_are_computed_there(stage: Stage, leader: Leader):
    stage.worker("w2", model="large")
    equal(stage, "a", "b")
    leader.step()
    with Session(stage.database) as session:
        assert operator_jobs.move_waiting(session, "small", "large") == 2
        session.commit()
    stage.sql("update requests set predicted_tokens = 10, predicted_upper_tokens = 15")
    leader.step()
    assert set(stage.requests("status", "twin_of").values()) == {("in_progress", None)}


def test_many_twins_are_answered_a_bounded_number_at_once(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, *(f"r{n:03}" for n in range(25)))
    leader.step()
    answer(stage, "r000")
    sizes = []
    while True:
        with stage.database.begin() as connection:
            answered = twins.share_answers(connection, most=10)
        sizes.append(len(answered))
        if not answered:
            break
        assert waiting_for_nothing(stage) == []
    assert sizes == [10, 10, 4, 0]
    assert set(stage.requests("status").values()) == {"completed"}


def test_large_answers_are_shared_in_fewer_at_once(stage: Stage, leader: Leader):
    stage.worker()
    equal(stage, *(f"r{n}" for n in range(4)))
    leader.step()
    answer(stage, "r0", text="".join(chr(97 + n * n % 26) + str(n) for n in range(1_500_000)))
    stage.sql("alter table requests alter output_text set storage external")
    stage.sql("update requests set output_text = output_text || '.' where id = 'r0'")
    with stage.database.begin() as connection:
        assert len(twins.share_answers(connection)) < 3


def test_answers_of_several_leaders_are_bounded_together(stage: Stage, leader: Leader, monkeypatch: pytest.MonkeyPatch):
    stage.worker()
    for group in "abc":
        equal(stage, *(f"{group}{n}" for n in range(4)), twin_sha256=group.encode())
    leader.step()
    for group in "abc":
        answer(stage, f"{group}0")  # of 11 stored bytes
    monkeypatch.setattr(twins, "MOST_BYTES", 30)
    sizes = []
    while waiting := [one for one, status in stage.requests("status").items() if status == "queued"]:
        with stage.database.begin() as connection:
            sizes.append(len(twins.share_answers(connection)))
        assert sizes[-1] in (1, 2), waiting
    assert sum(sizes) == 9
    assert set(stage.requests("shared").values()) == {False}


def test_a_twin_that_lost_its_leader_is_reported(stage: Stage, leader: Leader):
    equal(stage, "a", "b")
    leader.step()
    assert waiting_for_nothing(stage) == []
    stage.sql("update requests set status = 'cancelled', finished_at = now() where id = 'a'")
    stage.sql("update requests set shared = false where id = 'a'")
    assert waiting_for_nothing(stage) == ["request b"]

"""What the planner does about lost workers, full memory, suspects, cancels and deadlines, on a real Postgres."""

from dataclasses import replace

import pytest

from models.upkeep import reconciler
from scheduling.sharing.policy_factory import POLICIES
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage, eventually
from tests.integration.planner_stage import RULES


def test_a_batch_that_ran_out_of_memory_comes_back_as_two_sealed_halves(stage: Stage, leader: Leader):
    stage.worker("w1")
    for n in range(4):
        stage.request(f"r{n}", predicted_tokens=5 + n)
    ((whole, _),) = leader.step()
    stage.end_batch(whole, "out_of_memory")
    stage.worker("w2")
    leader.step()
    halves = [requests for _, requests in stage.batches().values() if requests]
    assert sorted(halves) == [["r0", "r1"], ["r2", "r3"]]
    assert stage.sql("select sealed from batches where id > :whole", whole=whole) == [(True,), (True,)]


def test_a_planner_that_takes_over_knows_the_halves_of_a_batch_that_ran_out_of_memory(stage: Stage, leader: Leader):
    stage.worker("w1")
    for n in range(4):
        stage.request(f"r{n}", predicted_tokens=5 + n)
    ((whole, _),) = leader.step()
    stage.end_batch(whole, "out_of_memory")
    leader.resign()
    ((half, _),) = eventually(leader.step)
    assert stage.sql("select size, sealed from batches where id = :half", half=half) == [(2, True)]


def test_a_request_that_comes_back_with_all_its_tokens_stops_nothing_and_generates_the_last_one_again(
    stage: Stage, leader: Leader
):
    """Found by the simulation (docs/results/simulation.md): the planner raised at each step, in each term."""
    stage.worker()
    stage.request("whole", limit_tokens=3, generated_ids=[5, 6, 7])
    stage.request("other")
    leader.step()
    assert stage.requests("status", "generated_ids") == {
        "whole": ("in_progress", [5, 6]),
        "other": ("in_progress", []),
    }


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_request_that_outgrew_a_worker_alone_goes_to_a_larger_one_or_fails_with_that_reason(stage, policy: str):
    leader = Leader(stage.database, replace(RULES, policy=policy))
    stage.worker("small", kv_tokens=3000)
    stage.worker("large", kv_tokens=4000)
    stage.request("r1", outgrew_tokens=3000)
    stage.request("r2", outgrew_tokens=4000)
    assert [worker for _, worker in leader.step()] == ["large"]
    assert stage.requests("status", "error->>'code'") == {
        "r1": ("in_progress", None),
        "r2": ("failed", "out_of_memory"),
    }
    leader.resign()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_prompt_larger_than_any_worker_fails_at_once_and_one_that_fits_only_the_largest_goes_there(stage, policy):
    leader = Leader(stage.database, replace(RULES, policy=policy))
    stage.worker("small", kv_tokens=500)
    stage.worker("large", kv_tokens=600)
    stage.request("too large", prompt_tokens=600)
    stage.request("just fits", prompt_tokens=599, limit_tokens=1, predicted_tokens=1, predicted_upper_tokens=1)
    assert [worker for _, worker in leader.step()] == ["large"]
    assert stage.requests("status", "error->>'code'") == {
        "just fits": ("in_progress", None),
        "too large": ("failed", "context_length_exceeded"),
    }
    leader.resign()


def test_what_waits_for_a_worker_that_does_not_come_back_fails(stage: Stage):
    leader = Leader(stage.database, replace(RULES, policy="fusion", recover_every_s=0.0, fleet_memory_s=60.0))
    stage.worker("small", kv_tokens=500)
    stage.worker("large", kv_tokens=1000)
    stage.request("r1", prompt_tokens=700)
    stage.sql("update workers set stopped_at = clock_timestamp() where name = 'large'")
    leader.step()
    assert stage.requests("status") == {"r1": "queued"}
    stage.sql("update workers set heartbeat_at = clock_timestamp() - interval '1 hour' where name = 'large'")
    leader.step()
    assert stage.requests("status") == {"r1": "failed"}
    leader.resign()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_suspects_are_served_in_halves_and_no_other_request_is_in_their_batches(stage: Stage, policy: str):
    leader = Leader(stage.database, replace(RULES, policy=policy))
    stage.worker("w1")
    stage.worker("w2")
    for n in range(4):
        stage.request(f"suspect{n}", suspect_group="7", suspected=1, predicted_tokens=5 + n)
    stage.request("other")
    batches = []
    for _ in range(4):
        for batch_id, _ in leader.step():
            batches.append(stage.batches()[batch_id][1])
            stage.end_batch(batch_id)
    assert sorted(batches) == [["other"], ["suspect0", "suspect1"], ["suspect2", "suspect3"]]
    leader.resign()


def test_the_reconciler_sends_again_what_was_never_taken(stage: Stage):
    leader = Leader(stage.database, replace(RULES, resend_s=0.0, recover_every_s=0.0))
    stage.worker("w1")
    stage.request("r1")
    first = leader.step()
    assert leader.step() == first
    stage.sql("update batches set status = 'running'")
    assert leader.step() == []
    leader.resign()


def test_a_request_with_which_alone_workers_are_lost_fails_once_that_happened_too_often(stage: Stage):
    rules = replace(RULES, recover_every_s=0.0, alive_s=-1.0)  # may requeue expired leases at once
    stage.request("r1")
    for attempt in (1, 2, 3):
        stage.sql("delete from workers")
        stage.worker("w1")
        stage.sql("update workers set heartbeat_at = clock_timestamp() + interval '1 hour'")
        leader = Leader(stage.database, rules)
        ((batch_id, _),) = leader.step()
        stage.sql(
            """update batches set status = 'running', started_at = clock_timestamp(),
            lease_until = clock_timestamp() - interval '1 second' where id = :id""",
            id=batch_id,
        )
        stage.sql("update workers set stopped_at = clock_timestamp()")
        assert stage.requests("attempts", "suspected") == {"r1": (1, attempt - 1)}
        leader.step()
        assert stage.sql("select status from batches where id = :id", id=batch_id) == [("lost",)]
        leader.resign()
    assert stage.requests("status", "error->>'code'", "attempts") == {"r1": ("failed", "server_error", 3)}


def test_a_batch_that_was_never_started_on_a_gone_worker_costs_no_attempt(stage: Stage):
    leader = Leader(stage.database, replace(RULES, recover_every_s=0.0))
    stage.worker("w1")
    stage.request("r1")
    leader.step()
    stage.sql("update workers set stopped_at = clock_timestamp()")
    leader.resign()
    leader = Leader(stage.database, replace(RULES, recover_every_s=0.0, alive_s=-1.0))
    leader.step()
    assert stage.requests("status", "attempts") == {"r1": ("queued", 0)}
    leader.resign()


def test_a_cancel_asked_for_while_running_ends_a_request_that_comes_back(stage: Stage):
    leader = Leader(stage.database, replace(RULES, recover_every_s=0.0))
    stage.worker("w1")
    stage.request("r1")
    leader.step()
    stage.sql("update requests set cancel_requested_at = clock_timestamp()")
    stage.sql("update workers set stopped_at = clock_timestamp()")
    leader.resign()
    leader = Leader(stage.database, replace(RULES, recover_every_s=0.0, alive_s=-1.0))
    leader.step()
    assert stage.requests("status") == {"r1": "cancelled"}
    leader.resign()


def test_a_request_never_starts_after_its_deadline(stage: Stage):
    leader = Leader(stage.database, replace(RULES, recover_every_s=3600.0))
    stage.worker("w1")
    leader.step()  # looks for passed deadlines, and not again within this test
    stage.request("r1")
    stage.request("r2")
    stage.sql("update requests set deadline_at = clock_timestamp() where id = 'r1'")
    leader.step()
    assert stage.requests("status", "attempts") == {"r1": ("queued", 0), "r2": ("in_progress", 1)}
    leader.resign()


def test_deadlines_that_end_together_and_requests_without_a_predictor_are_some_a_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "CHANGED_AT_ONCE", 2)
    monkeypatch.setattr(reconciler, "EXPIRED_AT_ONCE", 2)
    for n in range(5):
        stage.request(f"r{n}", predicted_tokens=None)
    with stage.database.begin() as connection:
        assert [reconciler.write_fallback_predictions(connection, -1.0) for _ in range(3)] == [2, 2, 1]
        connection.exec_driver_sql("update requests set deadline_at = clock_timestamp() - interval '1 s'")
        assert [len(reconciler.expire_deadlines(connection)) for _ in range(3)] == [2, 2, 1]


def test_a_planner_steps_again_at_once_while_more_deadlines_have_passed_than_one_step_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "EXPIRED_AT_ONCE", 2)
    leader = Leader(stage.database, replace(RULES, recover_every_s=3600.0))
    for n in range(5):
        stage.request(f"r{n}")
    stage.sql("update requests set deadline_at = clock_timestamp()")
    unfinished = []
    for _ in range(3):
        leader.step()
        unfinished.append(leader.outlook.unfinished)
    assert unfinished == [True, True, False]
    assert stage.requests("status") == {f"r{n}": "failed" for n in range(5)}
    assert not leader.outlook.has_work
    leader.resign()


def test_a_deadline_that_passes_while_waiting_ends_the_request_and_says_so(stage: Stage):
    leader = Leader(stage.database, replace(RULES, recover_every_s=0.0))
    stage.request("r1")
    leader.step()
    stage.sql("update requests set deadline_at = clock_timestamp()")
    leader.step()
    assert stage.requests("status", "error->>'code'") == {"r1": ("failed", "deadline_exceeded")}
    stage.worker("w1")
    assert leader.step() == []
    leader.resign()

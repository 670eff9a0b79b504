"""The planner on a real Postgres: it carries out its policy, loses nothing, and can be replaced at any moment."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from models import planner_state
from scheduling.policies.policy_factory import POLICIES, PolicySettings
from tasks.planning.leader import Leader
from tasks.planning.planner_rules import PlannerRules
from tests.integration.database_stage import Stage, eventually

RULES = PlannerRules(policy="magnus", settings=PolicySettings(), lookahead_s=0.0, alive_s=3600.0, lease_s=3600.0)


@pytest.fixture
def leader(stage: Stage) -> Iterator[Leader]:
    leader = Leader(stage.database, RULES)
    yield leader
    leader.resign()


def test_what_waits_is_assigned_to_an_idle_worker_and_its_batch_named_for_sending(stage: Stage, leader: Leader):
    stage.worker("w1")
    stage.request("r1")
    ((batch_id, worker),) = leader.step()
    assert worker == "w1"
    assert stage.batches() == {batch_id: ("w1", ["r1"])}
    assert stage.requests("status", "attempts") == {"r1": ("in_progress", 1)}


def test_a_request_that_nobody_predicted_yet_waits_for_the_predictor(stage: Stage, leader: Leader):
    stage.worker()
    stage.request("r1", predicted_tokens=None, predicted_upper_tokens=None)
    stage.sql("insert into service_state (name, value) values ('predictor', '{}')")
    assert leader.step() == []


def test_without_a_predictor_a_request_gets_the_mean_of_its_application_or_else_its_limit(stage: Stage):
    stage.worker()
    for n, tokens in enumerate((4, 8)):
        stage.request(f"done{n}", status="completed", output_tokens=tokens, finished_at=datetime.now(UTC))
    for name, application in (("known", "copy"), ("new", "never seen")):
        stage.request(name, application=application, predicted_tokens=None, predicted_upper_tokens=None)
    leader = Leader(stage.database, replace(RULES, predictor_grace_s=0.0))
    leader.step()
    predicted = stage.requests("predicted_tokens", "predicted_upper_tokens", "predictor_version")
    assert predicted["known"] == (6, 20, "application mean")  # (4 + 8) / 2
    assert predicted["new"] == (20, 20, "limit")
    leader.resign()


def test_its_steps_may_be_further_apart_only_while_every_worker_decodes_rows_that_others_may_join(stage: Stage):
    leader = Leader(stage.database, replace(RULES, policy="fusion"))
    leader.step()
    assert not leader.all_joinable  # there is no worker
    stage.worker("w1")
    stage.request("r1")
    leader.step()
    assert not leader.all_joinable  # w1 was idle when the step began
    leader.step()
    assert leader.all_joinable
    stage.worker("w2")
    leader.step()
    assert not leader.all_joinable
    leader.resign()
    assert not leader.all_joinable


def test_it_knows_when_a_policy_that_delays_joiners_wants_to_be_asked_again(stage: Stage):
    leader = Leader(stage.database, replace(RULES, policy="fusion"))
    stage.worker("w1")
    stage.request("r1")
    leader.step()
    assert leader.due_in_s is None
    stage.request("r2")
    leader.step()  # stalling r1 to prefill r2 alone is not worth it yet
    assert leader.due_in_s is not None
    assert 0 <= leader.due_in_s < 10
    leader.resign()


def test_one_planner_leads_and_the_next_takes_over_with_everything_that_waits(stage: Stage, leader: Leader):
    stage.request("r1")
    assert leader.step() == []  # leads, and its policy has r1; there is no worker
    other = Leader(stage.database, RULES)
    stage.worker("w1")
    assert other.step() == []
    leader.resign()
    assert [worker for _, worker in eventually(other.step)] == ["w1"]
    assert stage.requests("status") == {"r1": "in_progress"}
    other.resign()


def test_a_request_cancelled_meanwhile_drops_out_of_its_batch(stage: Stage, leader: Leader):
    stage.request("r1")
    stage.request("r2")
    leader.step()
    stage.sql("update requests set status = 'cancelled', finished_at = clock_timestamp() where id = 'r1'")
    stage.worker("w1")
    ((batch_id, _),) = leader.step()
    assert stage.batches()[batch_id] == ("w1", ["r2"])
    assert stage.sql("select size from batches") == [(1,)]


def test_a_batch_whose_requests_were_all_cancelled_is_not_made(stage: Stage, leader: Leader):
    stage.request("r1")
    leader.step()
    stage.sql("update requests set status = 'cancelled', finished_at = clock_timestamp()")
    stage.worker("w1")
    assert leader.step() == []
    assert stage.batches() == {}


def test_requests_of_two_models_never_share_a_batch_or_a_worker(stage: Stage, leader: Leader):
    stage.worker("w1", model="one")
    stage.worker("w2", model="two")
    for n in range(6):
        stage.request(f"r{n}", model=("one", "two")[n % 2])
    leader.step()
    assert sorted(stage.batches().values()) == [("w1", ["r0", "r2", "r4"]), ("w2", ["r1", "r3", "r5"])]


def test_another_policy_takes_over_everything_that_waits_and_repeats_nothing(stage: Stage, leader: Leader):
    stage.worker("w1")
    stage.request("r1")
    leader.step()
    for n in range(2, 5):
        stage.request(f"r{n}")
    leader.step()
    with stage.database.begin() as connection:
        planner_state.set_policy(connection, "vs")
    leader.step()
    assert stage.sql("select value->>'policy' from service_state where name = 'planner'") in ([("vs",)], [("magnus",)])
    stage.end_batch(min(stage.batches()))
    leader.step()
    assert stage.requests("status") == {
        "r1": "completed",
        "r2": "in_progress",
        "r3": "in_progress",
        "r4": "in_progress",
    }
    assert stage.sql("select policy from batches order by id") == [("magnus",), ("vs",)]


def test_a_policy_that_does_not_exist_changes_nothing(stage: Stage, leader: Leader):
    with stage.database.begin() as connection:
        planner_state.set_policy(connection, "best")
    stage.worker("w1")
    stage.request("r1")
    assert len(leader.step()) == 1
    assert stage.sql("select policy from batches") == [("magnus",)]


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
    rules = replace(RULES, recover_every_s=0.0, max_attempts=2, alive_s=-1.0)  # may requeue expired leases at once
    stage.request("r1")
    for attempt in (1, 2):
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
    assert stage.requests("status", "error->>'code'", "attempts") == {"r1": ("failed", "server_error", 2)}


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


def test_the_snapshot_says_what_waits_and_when_it_starts(stage: Stage, leader: Leader):
    for n in range(3):
        stage.request(f"r{n}")
    leader.step()
    ((value,),) = stage.sql("select value from service_state where name = 'planner'")
    assert (value["policy"], value["waiting"]) == ("magnus", 3)
    (batch,) = value["batches"]
    assert sorted(batch["ids"]) == ["r0", "r1", "r2"]
    assert (batch["size"], batch["length"], batch["starts_in_s"]) == (3, 3, 0.0)


def test_while_others_wait_it_steps_again_shortly_before_its_worker_is_idle(stage: Stage):
    stage.worker("w1", kv_tokens=40)
    leader = Leader(stage.database, replace(RULES, policy="vs", lookahead_s=0.01))
    for n in range(20):
        stage.request(f"r{n:02}", input="abc" * n + "x")
    assert len(leader.step()) == 1
    ((estimated_s,),) = stage.sql("select estimated_s from batches")
    assert leader.due_in_s == pytest.approx(estimated_s - 0.01, abs=1e-3)
    leader.step()
    assert leader.due_in_s == pytest.approx(estimated_s - 0.01, abs=1e-3)  # it has not started
    leader.resign()


def test_with_nothing_waiting_it_need_not_step_again(stage: Stage):
    stage.worker("w1")
    leader = Leader(stage.database, replace(RULES, policy="vs"))
    stage.request("r1")
    assert len(leader.step()) == 1
    assert leader.due_in_s is None
    leader.resign()


@pytest.mark.parametrize("policy", ["magnus", "scls", "fusion"])
def test_what_only_some_workers_can_do_goes_to_those_and_waits_while_they_are_away(stage: Stage, policy: str):
    leader = Leader(stage.database, replace(RULES, policy=policy))
    stage.worker("able")
    stage.worker("unable")
    stage.sql("update workers set lacks = '{logprobs,response_format}' where name = 'unable'")
    stage.sql("update workers set stopping = true where name = 'able'")
    for n in range(3):
        stage.request(f"json{n}", needs=["response_format"])
        stage.request(f"plain{n}")
    given: list[tuple[str, list[str]]] = []
    for _ in range(4):
        given += stage.batches().values() if leader.step() else []
        stage.sql("update batches set status = 'finished', finished_at = clock_timestamp(), started_at = assigned_at")
    assert {worker for worker, _ in given} == {"unable"}
    assert {one for one, status in stage.requests("status").items() if status == "queued"} == {
        "json0",
        "json1",
        "json2",
    }
    stage.sql("update workers set stopping = false where name = 'able'")
    stage.sql("update workers set stopping = true where name = 'unable'")
    batches = leader.step()
    assert {worker for _, worker in batches} == {"able"}
    leader.resign()


def test_what_no_worker_can_do_is_given_to_any_which_refuses_it_by_name(stage: Stage, leader: Leader):
    stage.worker("unable")
    stage.sql("update workers set lacks = '{logprobs}'")
    stage.request("r1", needs=["logprobs"])
    assert [worker for _, worker in leader.step()] == ["unable"]
    ((state,),) = stage.sql("select value from service_state where name = 'planner'")
    assert state["lacking"] == {"small": ["logprobs"]}


def test_a_worker_that_can_do_less_than_the_others_gets_nothing_that_needs_more_from_its_first_moment_on(
    stage: Stage, leader: Leader
):
    stage.request("r1", needs=["logprobs"])
    assert leader.step() == []
    stage.worker("able")
    stage.sql("update workers set stopping = true")
    stage.worker("unable")
    stage.sql("update workers set lacks = '{logprobs}' where name = 'unable'")
    assert leader.step() == []
    stage.sql("update workers set stopping = false")
    assert [worker for _, worker in leader.step()] == ["able"]

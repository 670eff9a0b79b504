"""The planner on a real Postgres: it carries out its policy, loses nothing, and can be replaced at any moment."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from models import planner_state
from models.connections.session import make_sessions
from models.planning.queue_snapshot import read_queue_snapshot
from scheduling.sharing.policy_factory import POLICIES
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage, eventually
from tests.integration.planner_stage import RULES


def test_what_waits_is_assigned_to_an_idle_worker_and_its_batch_named_for_sending(stage: Stage, leader: Leader):
    stage.worker("w1")
    stage.request("r1")
    ((batch_id, worker),) = leader.step()
    assert worker == "w1"
    assert stage.batches() == {batch_id: ("w1", ["r1"])}
    assert stage.requests("status", "attempts") == {"r1": ("in_progress", 1)}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_every_policy_the_snapshot_can_be_read_and_says_when_a_request_would_be_answered(
    stage: Stage, policy: str
):
    stage.worker("w1")
    leader = Leader(stage.database, replace(RULES, policy=policy))
    for n in range(40):
        stage.request(f"r{n}", limit_tokens=10 + n)
    for _ in range(3):
        leader.step()
    with make_sessions(stage.database)() as session:
        snapshot = read_queue_snapshot(session)
    leader.resign()
    assert snapshot is not None
    order = snapshot.order("small")
    assert order is not None
    assert 0 < order.response_s(10, 20) < order.latest_s(order.response_s(10, 20))


def test_a_planner_takes_a_long_queue_over_in_parts_and_begins_with_what_no_planner_has_fetched(stage: Stage):
    first = Leader(stage.database, RULES)
    for n in range(3):
        stage.request(f"old{n}")
    first.step()
    first.resign()
    stage.request("new")
    before = stage.requests("planner_epoch")
    leader = Leader(stage.database, replace(RULES, fetched_at_once=2))
    fetched = []
    for _ in range(3):
        leader.step()
        now = stage.requests("planner_epoch")
        fetched.append(({one for one in now if now[one] != before[one]}, leader.outlook.unfinished))
    leader.resign()
    assert [len(names) for names, _ in fetched] == [2, 4, 4]
    assert "new" in fetched[0][0]
    assert [unfinished for _, unfinished in fetched] == [True, True, False]


def test_a_planner_fetches_background_work_after_all_others(stage: Stage):
    leader = Leader(stage.database, replace(RULES, fetched_at_once=2))
    for name, tier in (("b1", "flex"), ("b2", "flex"), ("a1", "default"), ("b3", "flex"), ("a2", "priority")):
        stage.request(name, tier=tier)
    leader.step()
    assert [name for name, epoch in stage.requests("planner_epoch").items() if epoch] == ["a1", "a2"]
    stage.request("a3")
    leader.step()
    fetched = {name for name, epoch in stage.requests("planner_epoch").items() if epoch}
    leader.resign()
    assert fetched > {"a1", "a2", "a3"}
    assert len(fetched) == 4


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
    assert leader.outlook.shortest_step_s is None  # there is no worker
    stage.worker("w1")
    stage.request("r1")
    leader.step()
    assert leader.outlook.shortest_step_s is None  # w1 was idle when the step began
    leader.step()
    assert leader.outlook.shortest_step_s is not None
    stage.worker("w2")
    leader.step()
    assert leader.outlook.shortest_step_s is None
    leader.resign()
    assert leader.outlook.shortest_step_s is None


def test_it_knows_when_a_policy_that_delays_joiners_wants_to_be_asked_again(stage: Stage):
    leader = Leader(stage.database, replace(RULES, policy="fusion"))
    stage.worker("w1", prefill_s=60.0)  # so that no delay of this machine makes the join worth it
    stage.request("r1")
    leader.step()
    assert leader.outlook.due_in_s is None
    stage.request("r2")
    leader.step()  # stalling r1 to prefill r2 alone is not worth it yet
    assert leader.outlook.due_in_s is not None
    assert 0 <= leader.outlook.due_in_s < 60
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
    assert stage.sql("select value->'decisions'->>'policy' from service_state where name = 'planner'") in (
        [("vs",)],
        [("magnus",)],
    )
    stage.end_batch(min(stage.batches()))
    leader.step()
    assert stage.requests("status") == {
        "r1": "completed",
        "r2": "in_progress",
        "r3": "in_progress",
        "r4": "in_progress",
    }
    assert stage.sql("select policy from batches order by id") == [("magnus",), ("vs",)]


def test_the_snapshot_says_what_waits_and_when_it_starts(stage: Stage, leader: Leader):
    for n in range(3):
        stage.request(f"r{n}")
    leader.step()
    ((value,),) = stage.sql("select value from service_state where name = 'planner'")
    assert (value["decisions"]["policy"], value["queue"]["requests"]) == ("magnus", 3)
    (batch,) = value["queue"]["batches"]
    assert sorted(batch["ids"]) == ["r0", "r1", "r2"]
    assert (batch["size"], batch["length"], batch["starts_in_s"]) == (3, 3, 0.0)


def test_the_snapshot_says_for_how_long_a_model_has_had_no_worker(stage: Stage):
    leader = Leader(stage.database, replace(RULES, snapshot_every_s=0.0))

    def told() -> dict[str, int]:
        leader.step()
        ((models,),) = stage.sql("select value->'models' from service_state where name = 'planner'")
        assert all(state["unserved_s"] >= 0 for state in models.values())
        return {model: state["unserved"] for model, state in models.items() if state["unserved"]}

    stage.worker("w1")
    stage.request("r1", model="gone")
    assert told() == {"gone": 1}
    stage.worker("w2", model="gone")
    assert eventually(lambda: told() == {})
    leader.resign()


@pytest.mark.parametrize(
    "goes",
    [
        "delete from requests where id = 'r1'",
        "update requests set model = 'small', planner_epoch = 0, predicted_tokens = null where id = 'r1'",
        "update requests set status = 'cancelled', finished_at = clock_timestamp() - interval '1 h' where id = 'r1'",
    ],
    ids=["deleted", "moved and not predicted yet", "cancelled during a long step"],
)
def test_a_request_of_a_model_without_workers_waits_no_longer_once_it_is_gone(stage: Stage, goes: str):
    leader = Leader(stage.database, replace(RULES, snapshot_every_s=0.0, recover_every_s=0.0))

    def told() -> list[object]:
        leader.step()
        return stage.sql(
            "select value->'models'->'gone'->'unserved', value->'queue'->'requests' from service_state"
            " where name = 'planner'"
        )

    stage.worker("w1")
    for name in ("r1", "r2"):
        stage.request(name, model="gone")
    assert told() == [(2, 2)]
    stage.sql(goes)
    assert eventually(lambda: told() == [(1, 1)])
    leader.resign()


def test_a_job_that_is_paused_while_its_model_has_no_worker_does_not_let_the_queue_be_read_again(stage: Stage):
    leader = Leader(stage.database, replace(RULES, recover_every_s=0.0))
    for name in ("r1", "r2"):
        stage.request(name, model="gone")
    leader.step()
    leader.step()
    before = stage.requests("planner_epoch")
    stage.sql("update requests set held = true, planner_epoch = 0 where id = 'r1'")  # as a pause does
    for _ in range(3):
        leader.step()
    assert stage.requests("planner_epoch") == before
    leader.resign()


def test_while_others_wait_it_steps_again_shortly_before_its_worker_is_idle(stage: Stage):
    stage.worker("w1", kv_tokens=40)
    leader = Leader(stage.database, replace(RULES, policy="vs", lookahead_s=0.01))
    for n in range(20):
        stage.request(f"r{n:02}", input="abc" * n + "x")
    assert len(leader.step()) == 1
    ((estimated_s,),) = stage.sql("select estimated_s from batches")
    assert leader.outlook.due_in_s == pytest.approx(estimated_s - 0.01, abs=1e-3)
    leader.step()
    assert leader.outlook.due_in_s == pytest.approx(estimated_s - 0.01, abs=1e-3)  # it has not started
    leader.resign()


@pytest.mark.parametrize("policy", ["magnus", "scls", "fusion"])
def test_what_only_some_workers_can_do_goes_to_those_and_waits_while_they_are_away(stage: Stage, policy: str):
    leader = Leader(stage.database, replace(RULES, policy=policy))
    stage.worker("able")
    stage.worker("unable")
    stage.sql(
        """update workers set facts = facts || '{"lacks": ["logprobs", "response_format"]}' where name = 'unable'"""
    )
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
    stage.sql("""update workers set facts = facts || '{"lacks": ["logprobs"]}'""")
    stage.request("r1", needs=["logprobs"])
    assert [worker for _, worker in leader.step()] == ["unable"]
    ((state,),) = stage.sql("select value from service_state where name = 'planner'")
    assert state["models"]["small"]["lacking"] == ["logprobs"]


def test_a_worker_that_can_do_less_than_the_others_gets_nothing_that_needs_more_from_its_first_moment_on(
    stage: Stage, leader: Leader
):
    stage.request("r1", needs=["logprobs"])
    assert leader.step() == []
    stage.worker("able")
    stage.sql("update workers set stopping = true")
    stage.worker("unable")
    stage.sql("""update workers set facts = facts || '{"lacks": ["logprobs"]}' where name = 'unable'""")
    assert leader.step() == []
    stage.sql("update workers set stopping = false")
    assert [worker for _, worker in leader.step()] == ["able"]

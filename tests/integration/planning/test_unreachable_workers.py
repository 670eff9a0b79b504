"""A worker that reaches Postgres and not its queue: its batch goes elsewhere uncharged, and it gets only probes."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.leasing import leases, worker_registration
from processes.celery.messages import NO_BATCH
from processes.planner_rules import PlannerRules
from scheduling.sharing.policy_factory import PolicySettings
from tasks.planning.leader import Leader
from tasks.planning.recovery import MOST_SENDS
from tasks.serving.batches.lease_heartbeat import LeaseTerms
from tests.integration.api_service import Api
from tests.integration.database_stage import Stage, eventually, facts, insert_worker
from tests.integration.serving_worker import Serving, small_model

RULES = PlannerRules(
    policy="vs",
    settings=PolicySettings(),
    lookahead_s=0.0,
    alive_s=3600.0,
    lease_s=3600.0,
    resend_s=0.0,
    recover_every_s=0.0,
)


def sent_to_nobody(leader: Leader) -> list[list[tuple[int, str]]]:
    """Steps until the batch was sent as often as it ever is, and the one that takes it back."""
    return [leader.step() for _ in range(MOST_SENDS + 1)]


def test_a_batch_that_nobody_takes_goes_back_uncharged_and_its_worker_gets_only_probes(stage: Stage):
    stage.worker("unreachable")
    stage.request("r1")
    leader = Leader(stage.database, RULES)
    *sends, last = sent_to_nobody(leader)
    assert all(len(step) == 1 and step[0][0] != NO_BATCH for step in sends)
    assert last == [(NO_BATCH, "unreachable")]
    assert stage.requests("status", "attempts") == {"r1": ("queued", 0)}
    assert stage.sql("select status from batches") == [("lost",)]
    for _ in range(5):
        assert leader.step() == [(NO_BATCH, "unreachable")]
    leader.resign()


def test_another_worker_serves_what_was_taken_back(stage: Stage):
    stage.worker("unreachable")
    stage.request("r1")
    leader = Leader(stage.database, RULES)
    sent_to_nobody(leader)
    stage.worker("hears")
    sent = leader.step()
    assert [worker for batch, worker in sent if batch != NO_BATCH] == ["hears"]
    assert stage.requests("status", "attempts") == {"r1": ("in_progress", 1)}
    leader.resign()


def test_nobody_is_blamed_while_the_broker_takes_no_messages(stage: Stage):
    stage.worker("w1")
    stage.request("r1")
    leader = Leader(stage.database, replace(RULES, recover_every_s=0.001))
    for _ in range(3 * MOST_SENDS):
        leader.step(broker_error="OOM command not allowed")
    assert stage.sql("select not_consuming_since from workers") == [(None,)]
    leader.resign()


def test_a_worker_that_has_begun_another_batch_meanwhile_is_only_slow(stage: Stage):
    stage.worker("slow")
    stage.request("r1")
    leader = Leader(stage.database, replace(RULES, resend_s=0.05))
    leader.step()
    stage.sql("update batches set sends = 99, sent_at = sent_at - interval '1 minute'")
    stage.sql(
        """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status,
            started_at, lease_until) values ('slow', 'test', 1, 1, 1, 1.0, 'running', clock_timestamp(),
            clock_timestamp() + interval '1 hour')"""
    )
    leader.step()
    assert stage.requests("status") == {"r1": "in_progress"}
    leader.resign()


def test_a_worker_that_lacks_cpu_beats_late_and_is_not_blamed_for_taking_its_messages_late(stage: Stage):
    stage.worker("starved")
    stage.request("r1")
    leader = Leader(stage.database, replace(RULES, on_time_s=1.0))
    for _ in range(3 * MOST_SENDS):
        leader.step()
        stage.sql("update workers set heartbeat_at = clock_timestamp() - interval '2 s'")
    assert stage.sql("select not_consuming_since from workers") == [(None,)]
    assert stage.requests("status", "attempts") == {"r1": ("in_progress", 1)}
    stage.sql("update workers set heartbeat_at = clock_timestamp() + interval '1 h'")
    sent_to_nobody(leader)
    assert stage.requests("status", "attempts") == {"r1": ("queued", 0)}
    leader.resign()


def test_a_worker_that_no_probe_reaches_ends_after_so_many_beats(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory
):
    loaded, prompt_format = small_model(Path(tmp_path_factory.getbasetemp() / "small"))
    terms = LeaseTerms(lease_s=30.0, heartbeat_s=0.05, stall_s=30.0, unreachable_s=0.5)
    serving = Serving(stage, loaded, prompt_format, kv_tokens=1000, terms=terms)
    try:
        stage.sql("update workers set not_consuming_since = clock_timestamp()")
        serving.start(NO_BATCH).result(60)  # a probe: it is heard again
        assert stage.sql("select not_consuming_since from workers") == [(None,)]
        stage.sql("update workers set not_consuming_since = clock_timestamp()")
        eventually(lambda: serving.broken)
        assert serving.broken == ["it takes no batch that it is sent: it may reach another broker, or none"]
        beats = "select extract(epoch from stopped_at - not_consuming_since) >= 0.5 from workers"
        assert stage.sql(beats) == [(True,)]
    finally:
        serving.runner.stop()


def test_a_worker_that_stops_is_given_nothing_and_after_its_restart_again(stage: Stage):
    worker = facts()
    leader = Leader(stage.database, RULES)
    with stage.database.begin() as connection:
        incarnation = worker_registration.register(connection, worker)
        renewal = leases.renew(connection, "w1", incarnation, {}, 10.0, stopping=True)
    assert (renewal.registered, renewal.unreachable) == (True, False)
    stage.request("r1")
    assert leader.step() == []
    with stage.database.begin() as connection:
        worker_registration.register(connection, worker)
    assert [name for _, name in leader.step()] == ["w1"]
    leader.resign()


def test_it_learns_by_its_own_heartbeat_that_it_is_not_heard(stage: Stage):
    worker = facts()
    leader = Leader(stage.database, RULES)
    with stage.database.begin() as connection:
        incarnation = worker_registration.register(connection, worker)
    stage.request("r1")
    sent_to_nobody(leader)
    with stage.database.begin() as connection:
        assert leases.renew(connection, "w1", incarnation, {}, 10.0).unreachable
        incarnation = worker_registration.register(connection, worker)  # its next process
        assert leases.renew(connection, "w1", incarnation, {}, 10.0).unreachable
        assert leases.prove_consuming(connection, "w1")
        assert not leases.renew(connection, "w1", incarnation, {}, 10.0).unreachable
    leader.resign()


def test_a_worker_that_takes_its_batch_late_keeps_it(stage: Stage):
    stage.worker("w1")
    stage.request("r1")
    leader = Leader(stage.database, RULES)
    ((batch_id, _),) = leader.step()
    for _ in range(MOST_SENDS - 1):
        leader.step()
    with stage.database.begin() as connection:
        assert leases.take_batch(connection, batch_id, "w1", lease_s=60.0) is not None
    for _ in range(3):
        assert leader.step() == []
    assert stage.sql("select not_consuming_since from workers") == [(None,)]
    leader.resign()


def test_a_probe_that_arrives_gives_the_worker_batches_again(stage: Stage, tmp_path_factory: pytest.TempPathFactory):
    loaded, prompt_format = small_model(Path(tmp_path_factory.getbasetemp() / "small"))
    serving = Serving(stage, loaded, prompt_format, kv_tokens=1000)
    try:
        stage.sql("update workers set not_consuming_since = clock_timestamp()")
        stage.request("r1")
        leader = Leader(stage.database, replace(RULES, resend_s=60.0))
        assert leader.step() == [(NO_BATCH, "w1")]
        serving.start(NO_BATCH).result(60)
        assert [worker for _, worker in leader.step()] == ["w1"]
        leader.resign()
    finally:
        serving.runner.stop()


def restarted_worker(stage: Stage, failed: bool) -> None:
    """A worker that took no messages, ended, and runs again."""
    worker = facts()
    with stage.database.begin() as connection:
        incarnation = worker_registration.register(connection, worker)
    stage.sql("update workers set not_consuming_since = clock_timestamp()")
    with stage.database.begin() as connection:
        worker_registration.deregister(connection, "w1", incarnation, failed=failed)
        worker_registration.register(connection, worker)


def test_a_restarted_worker_gets_a_probe_before_it_gets_requests(stage: Stage):
    restarted_worker(stage, failed=True)
    stage.request("r1")
    leader = Leader(stage.database, RULES)
    assert leader.step() == [(NO_BATCH, "w1")]
    assert stage.requests("status") == {"r1": "queued"}
    with stage.database.begin() as connection:
        assert leases.prove_consuming(connection, "w1")
    assert [name for _, name in leader.step()] == ["w1"]
    leader.resign()


def test_a_worker_that_was_stopped_in_order_and_started_again_gets_requests_at_once(stage: Stage):
    restarted_worker(stage, failed=False)
    stage.request("r1")
    leader = Leader(stage.database, RULES)
    ((batch_id, name),) = leader.step()
    assert (batch_id != NO_BATCH, name) == (True, "w1")
    leader.resign()


@pytest.mark.parametrize("stopped_at", ["null", "clock_timestamp()"], ids=["runs", "has given up"])
def test_it_is_named_to_operators(api: Api, stopped_at: str):
    insert_worker(api.sql, facts("unreachable"), not_consuming_since="clock_timestamp()", stopped_at=stopped_at)
    ready = api.call("GET", "/readyz")
    assert ready.status_code == 200
    assert "worker unreachable takes no messages: compare its MAGNUS_REDIS_URL" in ready.json["missing"]
    assert "magnus_workers_not_consuming 1.0" in api.client.get("/metrics").get_data(as_text=True)
    stats = api.call("GET", "/v1/magnus/stats").json
    assert any("worker unreachable takes no messages" in problem for problem in stats["missing"])

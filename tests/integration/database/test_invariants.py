"""Each invariant is broken in a real database, and found by its name; a healthy database breaks none."""

import pytest

from models.leasing import leases, worker_registration
from models.operations import process_heartbeats
from models.upkeep.invariants import INVARIANTS, OF_PROCESSES, PROCESS_RUNS, PROCESS_WORKS, violations
from tests.integration.database_stage import Stage, facts

BATCH = """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status,
    lease_until, assigned_at)
    values ('w1', 'test', 1, 1, 1, 1.0, '{status}', {lease}, clock_timestamp() - interval '{age} s')"""
SNAPSHOT = "update service_state set value = '{}' where name = 'planner'"
BREAKS = {
    "planning goes on": """insert into service_state (name, value) values ('pause', '{"paused": true}')""",
    "the planner plans": "update service_state set updated_at = clock_timestamp() - interval '11 s'",
    "every engine works": """update workers set report = '{"fault": "ConnectError"}' where name = 'w2'""",
    "every engine answers": """insert into requests (id, tenant, application, instructions, input, input_tokens,
        prompt_tokens, limit_tokens, model, body, status, batch_id, output_text, output_tokens, finished_at)
        select 'e' || n, tenant, application, instructions, input, input_tokens, prompt_tokens, limit_tokens, model,
            body, 'completed', (select id from batches), '', 1, clock_timestamp()
        from requests, generate_series(1, 10) as n where id = 'r1'""",
    "the broker takes messages": SNAPSHOT.format('{"decisions": {"broker_error": "OOM command not allowed"}}'),
    "every model has a worker": SNAPSHOT.format('{"models": {"other": {"unserved": 7}}}'),
    "a worker takes batches": "update workers set drained_at = clock_timestamp()",
    "no lease is orphaned": BATCH.format(status="running", lease="clock_timestamp() - interval '60 s'", age=90),
    "no request is in two batches, or in an ended one": """update requests set status = 'in_progress',
        batch_id = 999 where id = 'r1'""",
    "no result without a batch": """update requests set status = 'completed', finished_at = clock_timestamp(),
        output_tokens = 3 where id = 'r1'""",
    "every twin waits for a request": "update requests set twin_sha256 = 'equal', twin_of = 'gone' where id = 'r1'",
    "every batch starts": BATCH.format(status="assigned", lease="null", age=90),
    "no worker is stale": """insert into workers (name, model, facts, longest_row_tokens, heartbeat_at)
        values ('silent', 'small', '{}', 1, clock_timestamp() - interval '60 s')""",
    "every worker takes its messages": "update workers set not_consuming_since = clock_timestamp()",
    "clocks agree": "update process_heartbeats set clock_ahead_s = 300 where kind = 'beat'",
    "every model in service has its bytes": """insert into model_versions (kind, version, active, sha256, stored,
        scores, data) values ('length', 'length-1', true, 'x', 'y', '{}', '{}')""",
    PROCESS_RUNS: "delete from process_heartbeats where kind = 'beat'",
    PROCESS_WORKS: "update process_heartbeats set failure = 'permission denied' where kind = 'planner'",
}


@pytest.fixture
def healthy(stage: Stage) -> Stage:
    """Two workers, a waiting request, a batch just sent, a heartbeat of each kind of process, a planner's snapshot."""
    for name in ("w1", "w2"):
        stage.worker(name)
    stage.request("r1")
    stage.sql(BATCH.format(status="assigned", lease="null", age=0))
    with stage.database.begin() as connection:
        (now,) = connection.exec_driver_sql("select extract(epoch from clock_timestamp())::float8").one()
        for kind in process_heartbeats.NEEDED:
            process_heartbeats.write(connection, kind, "host:1", now)
    stage.sql("insert into service_state (name, value) values ('planner', '{}')")
    return stage


def found(stage: Stage) -> list[str]:
    with stage.database.begin() as connection:
        return [violation.invariant for violation in violations(connection, grace_s=20.0)]


def test_every_invariant_has_a_test_that_breaks_it():
    assert {invariant.name for invariant in INVARIANTS} | set(OF_PROCESSES) == set(BREAKS)


def test_a_healthy_service_breaks_none(healthy: Stage):
    assert found(healthy) == []


def test_no_worker_is_blamed_for_what_the_broker_refuses(healthy: Stage):
    healthy.sql(BREAKS["every batch starts"])
    healthy.sql(BREAKS["the broker takes messages"].replace(":", "\\:"))
    assert found(healthy) == ["the broker takes messages"]


@pytest.mark.parametrize("invariant", BREAKS)
def test_what_breaks_an_invariant_is_found_by_its_name(healthy: Stage, invariant: str):
    healthy.sql(BREAKS[invariant].replace(":", "\\:"))
    assert found(healthy) == [invariant]


def test_a_workers_clock_is_compared_with_the_databases_at_each_heartbeat(healthy: Stage):
    with healthy.database.begin() as connection:
        incarnation = worker_registration.register(connection, facts("w3"))
        (now,) = connection.exec_driver_sql("select extract(epoch from clock_timestamp())::float8").one()
        leases.renew(connection, "w3", incarnation, {}, 10.0, own_clock=now - 90.0)
        (violation,) = violations(connection, grace_s=20.0)
        assert (violation.invariant, violation.examples) == ("clocks agree", ("worker w3, -90 s ahead",))
        leases.renew(connection, "w3", incarnation, {}, 10.0, own_clock=now)
        assert list(violations(connection, grace_s=20.0)) == []


def test_a_planner_whose_steps_fail_is_named_once_with_its_error(healthy: Stage):
    healthy.sql(BREAKS[PROCESS_WORKS])
    healthy.sql(BREAKS["the planner plans"])
    with healthy.database.begin() as connection:
        (violation,) = violations(connection, grace_s=20.0)
    assert violation.examples == ("the steps of planner host:1 fail: permission denied",)


def test_a_request_in_a_batch_beyond_the_batchs_size_is_found(healthy: Stage):
    healthy.request("r2")
    healthy.sql("update requests set status = 'in_progress', batch_id = (select id from batches)")
    assert found(healthy) == ["no request is in two batches, or in an ended one"]


def test_a_process_that_fell_silent_counts_as_missing(healthy: Stage):
    healthy.sql(
        "update process_heartbeats set heartbeat_at = clock_timestamp() - interval '1 min' where kind = 'planner'"
    )
    with healthy.database.begin() as connection:
        (violation,) = violations(connection, grace_s=20.0)
    assert violation.examples == ("no planner runs: requests are accepted and kept, and none is given to a worker",)


def test_a_second_process_of_a_kind_stands_in_for_a_silent_one(healthy: Stage):
    healthy.sql("update process_heartbeats set heartbeat_at = clock_timestamp() - interval '1 min' where kind = 'beat'")
    with healthy.database.begin() as connection:
        process_heartbeats.write(connection, "beat", "other:2", 0.0)
        process_heartbeats.forget(connection, "beat", "host:1")
        assert process_heartbeats.missing(process_heartbeats.processes(connection)) == []

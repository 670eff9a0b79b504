"""Leadership as a row: one leads, a frozen leader is replaced, and what it does after it was thawed changes nothing."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import DBAPIError

from models.connections.session import make_engine
from models.planning import leadership
from models.planning.leadership import Lead, LeadLost
from models.process_identity import this_process
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage
from tests.integration.planner_stage import RULES


def take(stage: Stage, lead_s: float = 3600.0, mine: Lead | None = None) -> Lead | None:
    with stage.database.begin() as connection:
        return leadership.take(connection, "planner", lead_s, mine)


def test_one_leads_until_its_lead_expires(stage: Stage):
    first = take(stage)
    assert first is not None
    assert take(stage) is None
    stage.sql("update leaderships set expires_at = clock_timestamp()")
    second = take(stage)
    assert second is not None
    assert second.fence > first.fence


def test_a_leader_that_lost_its_connection_leads_on_at_once(stage: Stage):
    first = take(stage)
    assert take(stage, mine=first) is not None


def test_a_process_of_this_host_that_has_ended_need_not_expire(stage: Stage):
    take(stage)
    stage.sql("update leaderships set holder = regexp_replace(holder, '[0-9]+$', '999999999')")
    assert take(stage) is not None
    for elsewhere in ("elsewhere", f"{this_process().partition('#')[0]}#another boot"):
        stage.sql("update leaderships set holder = :holder", holder=f"{elsewhere}:999999999")
        assert take(stage) is None


def test_a_replaced_leader_can_neither_renew_nor_write_what_relies_on_its_lead(stage: Stage):
    first = take(stage, lead_s=0.0)
    assert first is not None
    assert take(stage) is not None
    for use in (lambda c: leadership.renew(c, first, 1.0), lambda c: leadership.hold(c, first)):
        with stage.database.begin() as connection, pytest.raises(LeadLost):
            use(connection)


def test_nobody_takes_over_from_a_leader_within_its_transaction(stage: Stage):
    first = take(stage, lead_s=0.0)
    assert first is not None
    with stage.database.begin() as connection:
        leadership.hold(connection, first)
        assert take(stage) is None
    assert take(stage) is not None


def test_a_planner_that_was_frozen_while_another_took_over_assigns_nothing(stage: Stage):
    frozen = Leader(stage.database, RULES)
    stage.request("r1")
    assert frozen.step() == []  # its policy has r1; there is no worker
    stage.sql("update leaderships set expires_at = clock_timestamp(), holder = 'elsewhere:1'")
    other = Leader(stage.database, RULES)
    assert other.step() == []
    stage.worker("w1")
    with pytest.raises(LeadLost):
        frozen.step()
    assert stage.batches() == {}
    assert frozen.step() == []  # it no longer leads
    assert frozen.stands_by
    assert [worker for _, worker in other.step()] == ["w1"]
    for leader in (frozen, other):
        leader.resign()


def test_the_server_ends_a_transaction_whose_process_is_frozen(stage: Stage):
    url = stage.database.url.render_as_string(hide_password=False)
    impatient = make_engine(url, idle_in_transaction_s=0.05)
    with impatient.connect() as frozen:
        frozen.exec_driver_sql("lock table leaderships")
        with stage.database.begin() as other:
            # granted once the server has ended the frozen planner's transaction
            other.exec_driver_sql("lock table leaderships")
        with pytest.raises(DBAPIError):
            frozen.exec_driver_sql("select 1")
    impatient.dispose()


def test_a_request_that_breaks_the_policy_is_set_aside_and_the_others_are_planned(stage: Stage):
    for name in ("a", "b", "c"):
        stage.request(name)
    stage.request("bad", predicted_upper_tokens=None)  # which no predictor writes
    stage.worker("w1")
    leader = Leader(stage.database, replace(RULES, policy="fusion"))
    for _ in range(2):
        with pytest.raises(TypeError):
            leader.step()
    assert [worker for _, worker in leader.step()] == ["w1"]
    assert stage.requests("status") == {"a": "in_progress", "b": "in_progress", "c": "in_progress", "bad": "failed"}
    assert stage.sql("select error->>'code' from requests where id = 'bad'") == [("unschedulable",)]
    leader.resign()


def test_a_request_that_breaks_the_policy_is_found_behind_the_first_part_of_a_long_queue(stage: Stage):
    for name in ("a", "b", "c", "d"):
        stage.request(name)
    stage.request("bad", input="abcdefgh", predicted_upper_tokens=None)  # longer: not hidden behind the others
    stage.worker("w1", kv_tokens=12)  # less than one row needs to its end, so that no other joins it
    leader = Leader(stage.database, replace(RULES, policy="fusion", fetched_at_once=2))
    failed = 0
    for _ in range(8):
        try:
            leader.step()
        except TypeError:
            failed += 1
    assert failed == 2
    others = {"a": "in_progress", "b": "queued", "c": "queued", "d": "queued"}
    assert stage.requests("status") == {**others, "bad": "failed"}
    leader.resign()

"""Workers that renew their heartbeat and take nothing, or that stop: their requests go elsewhere, they get no more."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from models import leases, unheard_workers
from models.leases import WorkerRegistration
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage
from tests.integration.test_planner import RULES


@pytest.fixture
def leader(stage: Stage) -> Iterator[Leader]:
    leader = Leader(stage.database, replace(RULES, resend_s=0.0, recover_every_s=0.0))
    yield leader
    leader.resign()


def sent_in_vain(stage: Stage, leader: Leader) -> str:
    """Steps until a batch was taken back; returns its worker."""
    for _ in range(unheard_workers.MOST_RESENDS + 3):
        leader.step()
        lost = stage.sql("select worker from batches where status = 'lost'")
        if lost:
            return str(lost[0].worker)
    raise AssertionError("no batch was taken back")


def test_a_batch_that_no_worker_takes_goes_to_another_one_and_is_no_attempt(stage: Stage, leader: Leader):
    stage.worker("deaf")
    stage.request("r1")
    assert sent_in_vain(stage, leader) == "deaf"
    assert stage.requests("status", "attempts") == {"r1": ("queued", 0)}
    stage.worker("well")
    assert [worker for _, worker in leader.step()] == ["well"]
    assert stage.sql("select name from workers where withheld_reason is not null") == [("deaf",)]


def test_after_a_while_it_is_tried_again(stage: Stage, leader: Leader):
    stage.worker("deaf")
    stage.request("r1")
    sent_in_vain(stage, leader)
    assert leader.step() == []
    stage.sql("update workers set withheld_until = clock_timestamp()")
    assert [worker for _, worker in leader.step()] == ["deaf"]


def test_a_worker_that_has_begun_another_batch_meanwhile_is_only_slow(stage: Stage, leader: Leader):
    stage.worker("slow")
    stage.request("r1")
    leader.step()
    stage.sql(
        """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status,
            started_at, lease_until) values ('slow', 'test', 1, 1, 1, 1.0, 'running', clock_timestamp(),
            clock_timestamp() + interval '1 hour')"""
    )
    for _ in range(2 * unheard_workers.MOST_RESENDS):
        leader.step()
    assert stage.requests("status") == {"r1": "in_progress"}


def test_while_the_broker_takes_nothing_no_worker_is_blamed(stage: Stage):
    leader = Leader(stage.database, replace(RULES, resend_s=0.0, recover_every_s=0.001))
    stage.worker("well")
    stage.request("r1")
    for _ in range(2 * unheard_workers.MOST_RESENDS):
        leader.step(sent=False)
    assert stage.sql("select 1 from workers where withheld_reason is not null") == []
    leader.resign()


def test_a_worker_that_stops_is_given_nothing_and_after_its_restart_again(stage: Stage, leader: Leader):
    worker = WorkerRegistration("w1", "small", "cpu", 10_000, 1, curves=None)
    with stage.database.begin() as connection:
        incarnation = leases.register(connection, worker, max_attempts=3)
        renewal = leases.renew(connection, "w1", incarnation, {}, 10.0, stopping=True)
    assert (renewal.registered, renewal.unheard) == (True, False)
    stage.request("r1")
    assert leader.step() == []
    with stage.database.begin() as connection:
        leases.register(connection, worker, max_attempts=3)
    assert [name for _, name in leader.step()] == ["w1"]


def test_it_learns_by_its_own_heartbeat_that_it_is_not_heard_and_only_once(stage: Stage, leader: Leader):
    worker = WorkerRegistration("w1", "small", "cpu", 10_000, 1, curves=None)
    with stage.database.begin() as connection:
        incarnation = leases.register(connection, worker, max_attempts=3)
    stage.request("r1")
    sent_in_vain(stage, leader)
    with stage.database.begin() as connection:
        assert leases.renew(connection, "w1", incarnation, {}, 10.0).unheard
        incarnation = leases.register(connection, worker, max_attempts=3)  # its next process
        assert not leases.renew(connection, "w1", incarnation, {}, 10.0).unheard

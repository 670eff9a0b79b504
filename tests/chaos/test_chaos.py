"""Whatever is killed, wiped or frozen while requests run: every one of them is answered, and answered once.

`make test` has the three faults of `tests/e2e/test_demo.py`.
"""

from functools import partial

import pytest

from models import planner_state
from tests.chaos.breakable_service import Service
from tests.integration.database_stage import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def test_a_worker_killed_in_the_middle_of_a_batch(service: Service):
    ids = service.submit("worker", 60)
    name = service.worker_in_the_middle_of_a_batch()
    service.kill(name)
    service.start(name)
    service.all_answered_once(ids)
    assert service.stage.sql("select max(attempts) from requests where id = any(:ids)", ids=ids) == [(1,)]


def test_a_worker_killed_that_never_comes_back(service: Service):
    ids = service.submit("gone", 60)
    name = service.worker_in_the_middle_of_a_batch()
    service.kill(name)
    service.all_answered_once(ids)


def test_a_worker_asked_to_stop_in_the_middle_of_a_batch(service: Service):
    ids = service.submit("stop", 60)
    name = service.worker_in_the_middle_of_a_batch()
    service.running[name].terminate()
    assert service.running[name].wait(timeout=90) == 0
    begun_and_lost = """select 1 from batches where status = 'lost' and started_at is not null
        and finished_at > (select min(arrived_at) from requests where id = any(:ids))"""
    assert not service.stage.sql(begun_and_lost, ids=ids)  # its rows are in batches that finished, with their tokens
    assert service.stage.sql("select stopped_at is not null from workers where name = :name", name=name) == [(True,)]
    service.all_answered_once(ids)
    assert service.stage.sql("select max(attempts) from requests where id = any(:ids)", ids=ids) == [(1,)]


def test_the_planner_killed_while_requests_wait(service: Service):
    ids = service.submit("planner", 60)
    service.worker_in_the_middle_of_a_batch()
    service.kill("planner")
    service.start("planner")
    service.all_answered_once(ids)


def test_the_broker_wiped_under_load(service: Service):
    ids: list[str] = []
    for n in range(3):
        ids += service.submit(f"wiped{n}", 60)
        service.worker_in_the_middle_of_a_batch()
        service.wipe_broker()
    service.all_answered_once(ids)


def test_the_broker_frozen_for_a_while(service: Service):
    ids = service.submit("frozen", 60)
    service.worker_in_the_middle_of_a_batch()
    service.freeze("valkey")
    more = service.submit("meanwhile", 20)
    eventually(lambda: not service.stage.sql("select 1 from batches where status = 'running'"))
    service.thaw("valkey")
    service.all_answered_once(ids + more)


def test_the_broker_killed_and_started_empty(service: Service):
    ids = service.submit("broker", 60)
    service.worker_in_the_middle_of_a_batch()
    service.kill("valkey")
    service.start("valkey")
    service.wipe_broker()
    service.all_answered_once(ids)


def test_postgres_crashing_under_load(service: Service):
    ids = service.submit("postgres", 60)
    service.worker_in_the_middle_of_a_batch()
    service.crash_postgres()
    service.start("postgres")
    service.all_answered_once(ids)


def test_the_predictor_gone_for_good(service: Service):
    service.kill("predictor")
    service.all_answered_once(service.submit("unpredicted", 30))


def test_policies_switched_under_load(service: Service):
    ids = []
    for name in ("ccb", "scls", "vs", "magnus", "fusion"):
        ids += service.submit(f"before-{name}-", 50)
        service.worker_in_the_middle_of_a_batch()
        with service.stage.database.begin() as connection:
            planner_state.set_policy(connection, name)
        in_force = "select 1 from service_state where value->'decisions'->>'policy' = :name"
        eventually(partial(service.stage.sql, in_force, name=name))
    service.all_answered_once(ids)

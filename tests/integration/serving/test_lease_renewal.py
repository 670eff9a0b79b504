"""A renewal of leases tells batches that have just ended from batches that were lost."""

from concurrent.futures import ThreadPoolExecutor

from models.leasing import leases, worker_registration
from models.leasing.leases import Lease, Renewal
from models.planning.live_fleet import live_workers
from scheduling.request import RowLength
from scheduling.worker_facts import WorkerReport
from tests.integration.database_stage import Stage, eventually, facts

RUNNING = """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status,
    started_at, lease_until, fence) values ('w1', 'test', 1, 1, 1, 1.0, 'running', clock_timestamp(),
    clock_timestamp() + interval '1 hour', 1) returning id"""


def test_a_batch_that_ends_while_its_renewal_waits_for_that_is_not_lost(stage: Stage):
    with stage.database.begin() as connection:
        worker = facts()
        incarnation = worker_registration.register(connection, worker)
    ((ends,),), ((lost,),), ((runs,),) = stage.sql(RUNNING), stage.sql(RUNNING), stage.sql(RUNNING)
    stage.sql("update batches set status = 'lost', lease_until = null where id = :id", id=lost)

    def renew() -> Renewal:
        with stage.database.begin() as connection:
            progress = {Lease(batch_id, 1): 1 for batch_id in (ends, lost, runs)}
            return leases.renew(connection, "w1", incarnation, progress, 10.0)

    with ThreadPoolExecutor(1) as pool:
        with stage.database.begin() as writer:
            assert leases.lock_held(writer, [Lease(ends, 1)]).leases
            renewal = pool.submit(renew)
            eventually(lambda: stage.sql("select 1 from pg_stat_activity where wait_event_type = 'Lock'"))
            writer.exec_driver_sql(f"update batches set status = 'finished', lease_until = null where id = {ends}")
        assert renewal.result(60).held == {runs}
        assert renewal.result(60).closed == {ends}


def test_a_workers_predictions_of_its_rows_reach_the_planner_and_its_next_process_begins_without(stage: Stage):
    worker = facts()
    with stage.database.begin() as connection:
        for lengths in ({"r1": RowLength(16, 40, 90)}, {}):
            incarnation = worker_registration.register(connection, worker)
            leases.renew(connection, "w1", incarnation, {}, 10.0, report=WorkerReport(row_lengths=lengths))
            (live,) = live_workers(connection, alive_s=30.0)
            assert live.report.row_lengths == lengths


def test_only_a_transaction_that_need_not_be_durable_does_not_wait_for_the_disk(stage: Stage):
    stage.worker()
    ((batch,),) = stage.sql(RUNNING)
    with stage.database.connect() as connection:
        connection.exec_driver_sql("set synchronous_commit = local")
        connection.commit()
        for durable, waits_for in ((False, "off"), (True, "local")):
            leases.lock_held(connection, [Lease(batch, 1)], durable=durable)
            assert connection.exec_driver_sql("show synchronous_commit").scalar() == waits_for
            connection.commit()

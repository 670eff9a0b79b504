"""A renewal of leases tells batches that have just ended from batches that were lost."""

from concurrent.futures import ThreadPoolExecutor

from models.leasing import leases, worker_registration
from models.leasing.leases import Lease, Renewal, WorkerOffer
from models.planning.live_fleet import live_workers
from scheduling.request import RowLength
from tests.integration.database_stage import Stage, eventually

RUNNING = """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status,
    started_at, lease_until, fence) values ('w1', 'test', 1, 1, 1, 1.0, 'running', clock_timestamp(),
    clock_timestamp() + interval '1 hour', 1) returning id"""


def test_a_batch_that_ends_while_its_renewal_waits_for_that_is_not_lost(stage: Stage):
    with stage.database.begin() as connection:
        worker = worker_registration.WorkerRegistration("w1", "small", "cpu", 10_000, 1, curves=None)
        incarnation = worker_registration.register(connection, worker, max_attempts=3)
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
    worker = worker_registration.WorkerRegistration("w1", "small", "cpu", 10_000, 1, curves=None)
    with stage.database.begin() as connection:
        for lengths in ({"r1": RowLength(16, 40, 90)}, {}):
            incarnation = worker_registration.register(connection, worker, max_attempts=3)
            leases.renew(connection, "w1", incarnation, {}, 10.0, offer=WorkerOffer(row_lengths=lengths))
            (live,) = live_workers(connection, alive_s=30.0)
            assert live.row_lengths == lengths


def test_the_planner_knows_how_many_tokens_a_workers_rows_share(stage: Stage):
    worker = worker_registration.WorkerRegistration("w1", "small", "cpu", 10_000, 1, curves=None)
    with stage.database.begin() as connection:
        incarnation = worker_registration.register(connection, worker, max_attempts=3)
        for shared in (512, 0):
            leases.renew(connection, "w1", incarnation, {}, 10.0, offer=WorkerOffer(shared_tokens=shared))
            (live,) = live_workers(connection, alive_s=30.0)
            assert (live.shared_tokens, live.memory.capacity_tokens) == (shared, 10_000)


def test_a_workers_guesses_are_stored_as_its_process_has_counted_them(stage: Stage):
    worker = worker_registration.WorkerRegistration("w1", "small", "cpu", 10_000, 1, curves=None)
    with stage.database.begin() as connection:
        for guesses in ((9, 4), (0, 0)):
            incarnation = worker_registration.register(connection, worker, max_attempts=3)
            leases.renew(connection, "w1", incarnation, {}, 10.0, offer=WorkerOffer(guesses=guesses))
            stored = connection.exec_driver_sql("select guessed_tokens, right_guesses from workers").one()
            assert tuple(stored) == guesses


def test_only_a_transaction_that_need_not_be_durable_does_not_wait_for_the_disk(stage: Stage):
    stage.sql("insert into workers (name, model, device, theta_bytes, delta_bytes) values ('w1', 'small', 'cpu', 1, 1)")
    ((batch,),) = stage.sql(RUNNING)
    with stage.database.connect() as connection:
        connection.exec_driver_sql("set synchronous_commit = local")
        connection.commit()
        for durable, waits_for in ((False, "off"), (True, "local")):
            leases.lock_held(connection, [Lease(batch, 1)], durable=durable)
            assert connection.exec_driver_sql("show synchronous_commit").scalar() == waits_for
            connection.commit()

"""What a worker says of itself reaches planner and pages whole, and survives the upgrade of a running service."""

from dataclasses import replace

from alembic import command

from models.leasing import leases, worker_registration
from models.registered_workers import registered_workers
from models.schema_upgrade import alembic_config
from scheduling.worker_facts import WorkerReport
from tests.integration.database_stage import Stage
from tests.unit.models.test_stored_values import FACTS, REPORT, figures

EARLIER = """insert into workers (name, model, device, theta_bytes, delta_bytes, curves, paged, block_tokens, max_rows,
        windowed_bytes, window_tokens, lacks, adapters, prefix_cache, fault, row_lengths, shared_tokens, guessed_tokens,
        right_guesses, version, instance, loadable, model_changes, drained_at)
    values ('w1', 'small', 'cpu', 1000, 10, cast(:curves as jsonb), true, 32, 3, 8, 64, '{logprobs}', '{french}', true,
        'ConnectError', '{"r1": [16, 40, 90]}', 512, 9, 4, '1.0.0', 'host#boot:7', cast(:loadable as jsonb), 2,
        clock_timestamp())"""
STEPS = '"prefill": [0.0, 0.0, 0.0, 1.0], "decode": [0.0, 0.0, 0.0, 0.5]'
LEARNED = f'{{"kind": "learned", {STEPS}, "error": 0.25, "windows": 10, "version": 3, "typical": [4.0, 20.5]}}'
QUICK = f'{{"kind": "quick_profile", {STEPS}}}'
LOADABLE = f"""{{"small": {{"change_s": 2.5, "theta_bytes": 1000, "delta_bytes": 10, "paged": true, "block_tokens": 32,
        "max_rows": 4, "windowed_bytes": 8, "window_tokens": 64, "curves": {{"kind": "profile", {STEPS}}}}},
    "large": {{"change_s": 20.0, "theta_bytes": 500, "delta_bytes": 20, "curves": {{"kind": "profile", {STEPS}}}}}}}"""


def test_every_figure_is_read_as_the_worker_said_it(stage: Stage) -> None:
    with stage.database.begin() as connection:
        incarnation = worker_registration.register(connection, FACTS)
        leases.renew(connection, "w1", incarnation, {}, 10.0, report=REPORT)
        (worker,) = registered_workers(connection)
    assert (worker.facts, worker.report) == (FACTS, REPORT)
    ((longest,),) = stage.sql("select longest_row_tokens from workers")
    assert longest == FACTS.memory.longest_row_tokens
    with stage.database.begin() as connection:  # its next process
        worker_registration.register(connection, FACTS)
        (worker,) = registered_workers(connection)
    assert (worker.report, worker.curves) == (WorkerReport(), REPORT.curves)


def test_an_upgrade_keeps_the_registered_workers_and_can_be_undone(stage: Stage) -> None:
    columns = (
        "device, theta_bytes, curves, paged, block_tokens, max_rows, windowed_bytes, window_tokens, lacks, adapters"
    )
    columns += (
        ", prefix_cache, fault, row_lengths, shared_tokens, guessed_tokens, right_guesses, version, model_changes"
    )
    for curves in (LEARNED, QUICK):
        with stage.database.begin() as connection:
            command.downgrade(alembic_config(connection), "0038")
        stage.sql("delete from workers")
        stage.sql(EARLIER, curves=curves, loadable=LOADABLE)
        before = stage.sql(f"select {columns} from workers")
        with stage.database.begin() as connection:
            command.upgrade(alembic_config(connection), "head")
            (worker,) = registered_workers(connection)
        assert worker.memory == replace(FACTS.memory, max_rows=3)
        assert worker.loadable == FACTS.loadable
        assert worker.curves == (REPORT.curves if curves is LEARNED else FACTS.curves)
        unknown_before = {"clock_ahead_s": 0, "stopped_loops": 0, "saved_tokens": 0}
        assert figures(worker.report) == figures(REPORT) | {"curves": worker.report.curves} | unknown_before
        kept = {"memory": worker.facts.memory, "curves": worker.facts.curves}
        assert figures(worker.facts) == figures(FACTS) | kept | {"fingerprints": {}}
        assert worker.drained
        assert stage.sql("select longest_row_tokens from workers") == [(FACTS.memory.longest_row_tokens,)]
        with stage.database.begin() as connection:
            command.downgrade(alembic_config(connection), "0038")
        assert stage.sql(f"select {columns} from workers") == before
    with stage.database.begin() as connection:
        command.upgrade(alembic_config(connection), "head")

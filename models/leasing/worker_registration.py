"""Registers and deregisters workers, and requeues the batches that they leave open."""

from dataclasses import replace

from sqlalchemy import Connection

from models.connections.sql import run, text
from models.leasing.requeue import lose_batches
from models.stored_values import from_json, to_json
from scheduling.costs import ProfiledCurves
from scheduling.worker_facts import WorkerFacts, WorkerReport


def register(connection: Connection, worker: WorkerFacts) -> float:
    """Registers the worker under its name; returns its incarnation, which identifies its process.

    Open batches of an earlier process of that name are lost; the requests that it was serving are suspects (see
    `models.leasing.requeue`). If the earlier process took no messages, the new one must take a probe before it gets
    batches. Curves that were learned or fully profiled stay until the worker's model or device changes.
    """
    stored = "select facts::text, report::text from workers where name = :name for update"
    for row in run(connection, stored, {"name": worker.name}):
        before = from_json(WorkerFacts, row.facts)
        curves = from_json(WorkerReport, row.report).curves or before.curves
        quick = isinstance(curves, ProfiledCurves) and curves.quick
        if curves and not quick and (before.model, before.device) == (worker.model, worker.device):
            worker = replace(worker, curves=curves)
    (registered,) = run(
        connection,
        """
            insert into workers (name, model, instance, facts, longest_row_tokens)
            values (:name, :model, :instance, cast(:facts as jsonb), :longest_row_tokens)
            on conflict (name) do update set model = excluded.model, instance = excluded.instance,
                facts = excluded.facts, report = default, longest_row_tokens = excluded.longest_row_tokens,
                wanted_model = null, started_at = clock_timestamp(), heartbeat_at = clock_timestamp(),
                stopped_at = null, stopping = false,
                drained_at = case when workers.instance = excluded.instance then workers.drained_at end
            returning extract(epoch from started_at)::float8 as incarnation
        """,
        {
            "name": worker.name,
            "model": worker.model,
            "instance": worker.instance,
            "facts": to_json(worker),
            "longest_row_tokens": worker.memory.longest_row_tokens,
        },
    )
    _lose_open_batches(connection, worker.name, failed=True, died=True)
    return float(registered.incarnation)


def other_process(connection: Connection, name: str, instance: str, alive_s: float) -> str | None:
    """Returns the name of the other process that had this worker's name within `alive_s`, or None if none had."""
    return connection.execute(
        text("""
            select instance from workers where name = :name and instance <> :instance and stopped_at is null
                and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s)
        """),
        {"name": name, "instance": instance, "alive_s": alive_s},
    ).scalar_one_or_none()


def keep_alive(connection: Connection, name: str, instance: str) -> None:
    """Writes the heartbeat of a worker that is loading another model, and that gets no batch until it has loaded it."""
    connection.execute(
        text("update workers set heartbeat_at = clock_timestamp() where name = :name and instance = :instance"),
        {"name": name, "instance": instance},
    )


def deregister(connection: Connection, name: str, incarnation: float, failed: bool, stopped: bool = True) -> None:
    """Marks the worker as stopped and puts the requests of its open batches back into the queue.

    If the worker `failed`, the requests that it served are suspects. Without `stopped` it only gives its batches back,
    to register again with another model. A worker that took no messages and stops in order counts as repaired. Does
    nothing if another process has the worker's name.
    """
    mine = connection.execute(
        text("""
            update workers set stopped_at = case when :stopped then clock_timestamp() end,
                not_consuming_since = case when :failed or not :stopped then not_consuming_since end
            where name = :name and extract(epoch from started_at)::float8 = :incarnation returning name
        """),
        {"name": name, "incarnation": incarnation, "failed": failed, "stopped": stopped},
    ).one_or_none()
    if mine is not None:
        _lose_open_batches(connection, name, failed=failed)


def _lose_open_batches(connection: Connection, worker: str, failed: bool, died: bool = False) -> None:
    lost = """
        select b.id, b.status = 'running' and :failed from batches b
        where b.worker = :worker and b.status in ('assigned', 'running')
    """
    lose_batches(connection, lost, {"worker": worker, "failed": failed}, died)

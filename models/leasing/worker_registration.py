"""Registers and deregisters workers, and requeues the batches that they leave open."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from sqlalchemy import Connection, bindparam
from sqlalchemy.dialects.postgresql import JSONB

from models.leasing.requeue import LostBatch, blamed, requeue
from models.planning.worker_costs import curves_to_store, loadable_to_store
from models.sql import text
from scheduling.costs import ProfiledCurves
from scheduling.policy import Loadable


@dataclass(frozen=True, slots=True)
class WorkerRegistration:
    """The facts that a worker registers; `curves` are its measured prefill and decode curves (SCLS Eq. 3-4).

    Curves from a short measurement have the key `quick`; they replace those of a whole profile only if the worker's
    model or device has changed. `paged`: memory is the sum over rows in blocks of `block_tokens`; with windows see
    `KvMemory`. `lacks` names the abilities that its engine lacks, `adapters` those that it serves beside its model.
    `prefix_cache`: its engine caches prefixes of prompts. `loadable` has the models that it can load, the present one
    among them; it is empty for a worker that always serves the same one.
    """

    name: str
    model: str
    device: str
    theta_bytes: int
    delta_bytes: int
    curves: ProfiledCurves | None
    paged: bool = False
    block_tokens: int = 1
    lacks: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    prefix_cache: bool = False
    windowed_bytes: int = 0
    window_tokens: int = 0
    version: str | None = None  # version of Magnus that its process runs
    instance: str | None = None  # its process, host#boot:process id
    loadable: Mapping[str, Loadable] = field(default_factory=dict)


def register(connection: Connection, worker: WorkerRegistration, max_attempts: int) -> float:
    """Register the worker under its name; returns its incarnation, which identifies its process.

    Open batches of an earlier process of that name are lost; the requests that it was serving are suspects (see
    `models.leasing.requeue`). If the earlier one took no messages, this one must take a probe before it gets batches.
    """
    incarnation = connection.execute(
        text("""
            insert into workers (name, model, device, theta_bytes, delta_bytes, curves, paged, block_tokens, lacks,
                adapters, prefix_cache, windowed_bytes, window_tokens, version, instance, loadable)
            values (:name, :model, :device, :theta_bytes, :delta_bytes, :curves, :paged, :block_tokens, :lacks,
                :adapters, :prefix_cache, :windowed_bytes, :window_tokens, :version, :instance, :loadable)
            on conflict (name) do update set model = excluded.model, device = excluded.device,
                theta_bytes = excluded.theta_bytes, delta_bytes = excluded.delta_bytes,
                paged = excluded.paged, block_tokens = excluded.block_tokens, lacks = excluded.lacks,
                adapters = excluded.adapters, prefix_cache = excluded.prefix_cache,
                windowed_bytes = excluded.windowed_bytes, window_tokens = excluded.window_tokens,
                version = excluded.version, instance = excluded.instance,
                max_rows = null, fault = null, loadable = excluded.loadable, wanted_model = null,
                model_changes = case when workers.instance = excluded.instance then workers.model_changes + 1
                    else 0 end,
                curves = case when workers.curves->>'kind' = 'quick_profile' or workers.curves ? 'quick'
                    or workers.model <> excluded.model
                    or workers.device <> excluded.device then excluded.curves
                    else coalesce(workers.curves, excluded.curves) end,
                started_at = clock_timestamp(), heartbeat_at = clock_timestamp(), stopped_at = null,
                stopping = false,
                drained_at = case when workers.instance = excluded.instance then workers.drained_at end
            returning extract(epoch from started_at)::float8
        """).bindparams(bindparam("curves", type_=JSONB(none_as_null=True)), bindparam("loadable", type_=JSONB)),
        asdict(worker)
        | {
            "curves": curves_to_store(worker.curves),
            "lacks": list(worker.lacks),
            "adapters": list(worker.adapters),
            "loadable": loadable_to_store(worker.loadable),
        },
    ).scalar_one()
    _lose_open_batches(connection, worker.name, failed=True, max_attempts=max_attempts, died=True)
    return float(incarnation)


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
    """Write the heartbeat of a worker that loads another model; it gets no batch while it has not loaded it."""
    connection.execute(
        text("update workers set heartbeat_at = clock_timestamp() where name = :name and instance = :instance"),
        {"name": name, "instance": instance},
    )


def deregister(
    connection: Connection, name: str, incarnation: float, failed: bool, max_attempts: int, stopped: bool = True
) -> None:
    """Mark the worker as stopped and put the requests of its open batches back into the queue.

    If the worker `failed`, the requests that it served are suspects. Without `stopped` it only gives its batches back,
    to register again with another model. A worker that took no messages is held to have been repaired if it stops in
    order. Does nothing if another process has its name.
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
        _lose_open_batches(connection, name, failed=failed, max_attempts=max_attempts)


def _lose_open_batches(
    connection: Connection, worker: str, failed: bool, max_attempts: int, died: bool = False
) -> None:
    rows = connection.execute(
        text("""
            with unfinished as (
                select id, status = 'running' as taken from batches
                where worker = :worker and status in ('assigned', 'running') order by id for update
            )
            update batches b set status = 'lost', finished_at = clock_timestamp(), lease_until = null
            from unfinished u where b.id = u.id
            returning b.id, b.worker, b.joins, u.taken and :failed as taken, b.started_at is not null as started
        """),
        {"worker": worker, "failed": failed},
    )
    requeue(connection, blamed((LostBatch(**row._mapping) for row in rows), died), max_attempts)

"""Leases: a worker registers, takes batches under leases, renews them with its heartbeat, and deregisters.

A lease is a batch in status running together with its fencing number (`fence`), which grows each time the batch is
leased; a write under an old number changes nothing. Every transaction locks batches before requests, and batches in the
order of their ids, so that no two can deadlock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam
from sqlalchemy.dialects.postgresql import JSONB

from models.requeue import LostBatch, blamed, requeue
from models.sql.shared_text import text


@dataclass(frozen=True, slots=True)
class WorkerRegistration:
    """What a worker registers; `curves` are its measured prefill and decode curves (SCLS Eq. 3-4).

    Curves from a short measurement have the key `quick`; they never replace those of a whole profile, unless
    the worker's model or device is another now. `paged`: memory is the sum over rows in blocks of `block_tokens`.
    `lacks` names what its engine cannot do. `prefix_cache`: it keeps how the prompts began that it has served.
    """

    name: str
    model: str
    device: str
    theta_bytes: int
    delta_bytes: int
    curves: Mapping[str, Any] | None
    paged: bool = False
    block_tokens: int = 1
    lacks: tuple[str, ...] = ()
    prefix_cache: bool = False


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """What a worker can be given now: at most so many rows at once, and no work at all while its engine has a `fault`.

    `curves` are what it has learned since it registered; None: nothing new.
    """

    max_rows: int | None = None
    fault: str | None = None
    curves: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to serve a batch and write its results, valid while the batch runs with this fencing number."""

    batch_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """A request of a taken batch; `generated_ids` are the tokens that earlier slices generated.

    `needs` names what its engine must be able to do. `logprobs` are those of the generated ids, as they were stored.
    """

    id: str
    instructions: str
    input: str
    body: Mapping[str, Any]
    limit_tokens: int
    generated_ids: tuple[int, ...]
    priority: int = 0
    tenant: str = ""
    needs: tuple[str, ...] = ()
    logprobs: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """What a worker needs to serve a batch."""

    lease: Lease
    joins: bool
    iteration_limit: int | None
    preempts: tuple[str, ...]
    prompts: tuple[TakenRequest, ...]


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal of leases."""

    registered: bool  # False once another process has registered under the worker's name
    unheard: bool  # it did not take what it was sent, since it has registered
    held: frozenset[int]  # batches whose lease was renewed
    closed: frozenset[int]  # batches that ended under these leases: their worker has just written so itself
    cancels: frozenset[str]  # running requests whose cancel was requested


def register(connection: Connection, worker: WorkerRegistration, max_attempts: int) -> float:
    """Register the worker under its name; returns its incarnation, by which its process is told from earlier ones.

    Open batches of an earlier process of that name are lost; the requests that it was serving are suspects.
    """
    incarnation = connection.execute(
        text("""
            insert into workers (name, model, device, theta_bytes, delta_bytes, curves, paged, block_tokens, lacks,
                prefix_cache)
            values (:name, :model, :device, :theta_bytes, :delta_bytes, :curves, :paged, :block_tokens, :lacks,
                :prefix_cache)
            on conflict (name) do update set model = excluded.model, device = excluded.device,
                theta_bytes = excluded.theta_bytes, delta_bytes = excluded.delta_bytes,
                paged = excluded.paged, block_tokens = excluded.block_tokens, lacks = excluded.lacks,
                prefix_cache = excluded.prefix_cache,
                max_rows = null, fault = null,
                curves = case when workers.curves ? 'quick' or workers.model <> excluded.model
                    or workers.device <> excluded.device then excluded.curves
                    else coalesce(workers.curves, excluded.curves) end,
                started_at = clock_timestamp(), heartbeat_at = clock_timestamp(), stopped_at = null,
                stopping = false, not_consuming_since = null
            returning extract(epoch from started_at)::float8
        """).bindparams(bindparam("curves", type_=JSONB(none_as_null=True))),
        {
            "name": worker.name,
            "model": worker.model,
            "device": worker.device,
            "theta_bytes": worker.theta_bytes,
            "delta_bytes": worker.delta_bytes,
            "curves": worker.curves,
            "paged": worker.paged,
            "block_tokens": worker.block_tokens,
            "lacks": list(worker.lacks),
            "prefix_cache": worker.prefix_cache,
        },
    ).scalar_one()
    _lose_open_batches(connection, worker.name, failed=True, max_attempts=max_attempts, died=True)
    return float(incarnation)


def deregister(connection: Connection, name: str, incarnation: float, failed: bool, max_attempts: int) -> None:
    """Mark the worker as stopped and put the requests of its open batches back into the queue.

    If the worker `failed`, those that it was serving are suspects. Nothing happens if another process has its name now.
    """
    mine = connection.execute(
        text("""
            update workers set stopped_at = clock_timestamp()
            where name = :name and extract(epoch from started_at)::float8 = :incarnation returning name
        """),
        {"name": name, "incarnation": incarnation},
    ).one_or_none()
    if mine is not None:
        _lose_open_batches(connection, name, failed=failed, max_attempts=max_attempts)


def take_batch(connection: Connection, batch_id: int, worker: str, lease_s: float) -> TakenBatch | None:
    """Lease a batch and read its requests; None if it was taken before, was lost, or belongs to another worker.

    Requests with a cancel requested end cancelled instead.
    """
    batch = connection.execute(
        text("""
            update batches set status = 'running', fence = fence + 1,
                lease_until = clock_timestamp() + make_interval(secs => :lease_s)
            where id = :batch_id and worker = :worker and status = 'assigned'
            returning fence, joins, iteration_limit, preempts
        """),
        {"batch_id": batch_id, "worker": worker, "lease_s": lease_s},
    ).one_or_none()
    if batch is None:
        return None
    rows = connection.execute(
        text("""
            with cancelled as (
                update requests set status = 'cancelled', finished_at = clock_timestamp()
                where batch_id = :batch_id and status = 'in_progress' and cancel_requested_at is not null
            )
            select id, instructions, input, body, limit_tokens, generated_ids, priority, tenant, needs, logprobs
            from requests
            where batch_id = :batch_id and status = 'in_progress' and cancel_requested_at is null
            order by arrived_at, id
        """),
        {"batch_id": batch_id},
    )
    return TakenBatch(
        lease=Lease(batch_id, batch.fence),
        joins=batch.joins,
        iteration_limit=batch.iteration_limit,
        preempts=tuple(batch.preempts),
        prompts=tuple(
            TakenRequest(**{**row._mapping, "generated_ids": tuple(row.generated_ids), "needs": tuple(row.needs)})
            for row in rows
        ),
    )


def prove_consuming(connection: Connection, worker: str) -> bool:
    """Record that the worker has taken a message; whether it had been without batches until then."""
    return (
        connection.execute(
            text("""
                update workers set not_consuming_since = null
                where name = :worker and not_consuming_since is not null returning name
            """),
            {"worker": worker},
        ).one_or_none()
        is not None
    )


def renew(
    connection: Connection,
    name: str,
    incarnation: float,
    progress: Mapping[Lease, int],
    lease_s: float,
    stopping: bool = False,
    offer: WorkerOffer = WorkerOffer(),
) -> Renewal:
    """Write the worker's heartbeat, extend its leases, write their progress; returns the leases kept and the cancels.

    `progress`: tokens a row generated so far, by lease. A `stopping` worker is given no further batch, and another one
    what it offers.
    """
    row = connection.execute(
        text("""
            with mine as (
                update workers set heartbeat_at = clock_timestamp(),
                    stopping = stopping or :stopping, max_rows = :max_rows, fault = :fault,
                    curves = coalesce(:curves, curves)
                where name = :name and extract(epoch from started_at)::float8 = :incarnation
                returning not_consuming_since is not null as unheard
            ), locked as (
                select b.id, l.tokens from batches b
                join unnest(cast(:ids as bigint[]), cast(:fences as int[]), cast(:tokens as int[]))
                    as l (id, fence, tokens) using (id, fence)
                where b.status = 'running' order by b.id for update of b
            ), renewed as (
                update batches b set lease_until = clock_timestamp() + make_interval(secs => :lease_s),
                    progress_tokens = locked.tokens
                from locked where b.id = locked.id returning b.id
            )
            select exists(select from mine) as registered, exists(select from mine where unheard) as unheard,
                array(select id from renewed) as held,
                array(select id from requests where batch_id = any(cast(:ids as bigint[]))
                    and status = 'in_progress' and cancel_requested_at is not null) as cancels
        """).bindparams(bindparam("curves", type_=JSONB(none_as_null=True))),
        {
            "name": name,
            "incarnation": incarnation,
            "lease_s": lease_s,
            "stopping": stopping,
            "max_rows": offer.max_rows,
            "fault": offer.fault,
            "curves": offer.curves,
            "ids": [lease.batch_id for lease in progress],
            "fences": [lease.fence for lease in progress],
            "tokens": list(progress.values()),
        },
    ).one()
    held = frozenset(row.held)
    closed = _closed(connection, [lease for lease in progress if lease.batch_id not in held])
    return Renewal(row.registered, row.unheard, held, closed, frozenset(row.cancels))


def _closed(connection: Connection, leases: Collection[Lease]) -> frozenset[int]:
    """Those of these batches that ended under these leases.

    A statement of its own: the renewal may have waited for the transaction that ended a batch, which it then does not
    renew, and still reads the batch as it was when it began.
    """
    if not leases:
        return frozenset()
    rows = connection.execute(
        text("""
            select b.id from batches b
            join unnest(cast(:ids as bigint[]), cast(:fences as int[])) as l (id, fence) using (id, fence)
            where b.status in ('finished', 'out_of_memory')
        """),
        {"ids": [lease.batch_id for lease in leases], "fences": [lease.fence for lease in leases]},
    )
    return frozenset(row.id for row in rows)


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

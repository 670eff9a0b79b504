"""Leases: a worker takes batches under leases and renews the leases with its heartbeat.

A lease is a batch in status running together with its fencing number (`fence`), which grows each time the batch is
leased; a write under an old number changes nothing. Every transaction locks batches before requests, and batches in the
order of their ids, so that no two transactions can deadlock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection

from models.connections.sql import run
from models.notifications import AWAITED, AWAITED_S
from models.stored_values import to_json
from scheduling.request import ServiceTier
from scheduling.worker_facts import NO_FIGURES, WorkerReport


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to serve a batch and write its results, valid while the batch runs with this fencing number."""

    batch_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class HeldLeases:
    """Leases that stay valid until the transaction ends; `awaited` says whether API calls wait for requests to end."""

    leases: frozenset[Lease]
    awaited: bool


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """A request of a taken batch; `generated_ids` are the tokens that earlier slices generated.

    `needs` names the abilities that its engine must have. `logprobs` belong to the generated ids. The predicted tokens
    are the median and the upper quantile of the length; both are 0 without a prediction.
    """

    id: str
    model: str
    instructions: str
    input: str
    body: Mapping[str, Any]
    limit_tokens: int
    generated_ids: tuple[int, ...]
    tier: ServiceTier = "default"
    priority: int = 0
    tenant: str = ""
    needs: tuple[str, ...] = ()
    logprobs: list[Any] | None = None
    predicted_tokens: int = 0
    predicted_upper_tokens: int = 0
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A leased batch with the data that a worker needs to serve it."""

    lease: Lease
    joins: bool
    iteration_limit: int | None
    preempts: tuple[str, ...]
    prompts: tuple[TakenRequest, ...]
    most_rows: int | None = None  # joining rows wait until the worker has at most this many rows, theirs included


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal of leases."""

    registered: bool  # False once another process has registered under the worker's name
    wanted_model: str | None  # the model that the worker is told to change to
    unreachable: bool  # whether the worker gets no batch until it has taken a message (`not_consuming_since`)
    held: frozenset[int]  # batches whose lease was renewed
    closed: frozenset[int]  # batches that ended under these leases, because the worker has just written their end
    cancels: frozenset[str]  # running requests whose cancel was requested


def take_batch(
    connection: Connection,
    batch_id: int,
    worker: str,
    lease_s: float,
    fingerprints: Mapping[str, str] = MappingProxyType({}),
) -> TakenBatch | None:
    """Leases a batch and returns it with its requests, without cancelled ones; None if this worker cannot take it.

    Requests keep their tokens if what generated them has the fingerprint of the worker's model or adapter of that name.
    """
    leased = run(
        connection,
        """
            update batches set status = 'running', fence = fence + 1,
                lease_until = clock_timestamp() + make_interval(secs => :lease_s)
            where id = :batch_id and worker = :worker and status = 'assigned'
            returning fence, joins, iteration_limit, preempts, most_rows
        """,
        {"batch_id": batch_id, "worker": worker, "lease_s": lease_s},
    )
    if not leased:
        return None
    (batch,) = leased
    rows = run(
        connection,
        """
            with cancelled as (
                update requests /* stop */ set status = 'cancelled', finished_at = clock_timestamp()
                where batch_id = :batch_id and status = 'in_progress' and cancel_requested_at is not null
            )
            select id, coalesce(base, model) as model, instructions, input, body, limit_tokens, tier, priority, tenant,
                case when own then generated_ids else '{}' end as generated_ids, case when own then logprobs end
                as logprobs, needs, case when base is null then '' else model end as adapter,
                coalesce(predicted_tokens, 0) as predicted_tokens,
                coalesce(predicted_upper_tokens, 0) as predicted_upper_tokens
            from requests cross join lateral (
                select generated_by is not distinct from cast(:fingerprints as jsonb)->>requests.model as own
            ) as resumes
            where batch_id = :batch_id and status = 'in_progress' and cancel_requested_at is null
            order by arrived_at, id
        """,
        {"batch_id": batch_id, "fingerprints": to_json(dict(fingerprints))},
    )
    return TakenBatch(
        lease=Lease(batch_id, batch.fence),
        joins=batch.joins,
        iteration_limit=batch.iteration_limit,
        preempts=tuple(batch.preempts),
        most_rows=batch.most_rows,
        prompts=tuple(
            TakenRequest(**{**row._asdict(), "generated_ids": tuple(row.generated_ids), "needs": tuple(row.needs)})
            for row in rows
        ),
    )


def prove_consuming(connection: Connection, worker: str) -> bool:
    """Records that the worker has taken a message; returns whether it had got no batches until then."""
    proved = """
        update workers set not_consuming_since = null
        where name = :worker and not_consuming_since is not null returning name
    """
    return bool(run(connection, proved, {"worker": worker}))


def renew(
    connection: Connection,
    name: str,
    incarnation: float,
    progress: Mapping[Lease, int],
    lease_s: float,
    stopping: bool = False,
    report: WorkerReport = NO_FIGURES,
    own_clock: float | None = None,
) -> Renewal:
    """Writes the worker's heartbeat and report, extends its leases, writes their progress; returns what was renewed.

    `progress` has the most tokens that a row of each lease has gained. A `stopping` worker gets no further batch.
    `own_clock` is its host's time since the epoch; the report gets its difference to the database's clock.
    """
    (row,) = run(
        connection,
        """
            with mine as (
                update workers set heartbeat_at = clock_timestamp(),
                    stopping = stopping or :stopping, report = cast(:report as jsonb) || jsonb_strip_nulls(
                        jsonb_build_object('clock_ahead_s',
                            round(cast(:own_clock as numeric) - extract(epoch from statement_timestamp()))::int))
                where name = :name and extract(epoch from started_at)::float8 = :incarnation
                returning not_consuming_since is not null as unreachable, wanted_model
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
            select exists(select from mine) as registered, exists(select from mine where unreachable) as unreachable,
                (select wanted_model from mine) as wanted_model,
                array(select id from renewed) as held,
                array(select id from requests where batch_id = any(cast(:ids as bigint[]))
                    and status = 'in_progress' and cancel_requested_at is not null) as cancels
        """,
        {
            "name": name,
            "incarnation": incarnation,
            "lease_s": lease_s,
            "stopping": stopping,
            "report": to_json(report),
            "own_clock": own_clock,
            "ids": [lease.batch_id for lease in progress],
            "fences": [lease.fence for lease in progress],
            "tokens": list(progress.values()),
        },
    )
    held = frozenset(row.held)
    closed = _closed(connection, [lease for lease in progress if lease.batch_id not in held])
    return Renewal(row.registered, row.wanted_model, row.unreachable, held, closed, frozenset(row.cancels))


def _closed(connection: Connection, leases: Collection[Lease]) -> frozenset[int]:
    """Returns the batches that ended under these leases.

    Needs a statement of its own: a renewal that waited for the transaction which ended a batch does not renew that
    batch, but still reads its old state.
    """
    if not leases:
        return frozenset()
    rows = run(
        connection,
        """
            select b.id from batches b
            join unnest(cast(:ids as bigint[]), cast(:fences as int[])) as l (id, fence) using (id, fence)
            where b.status in ('finished', 'out_of_memory')
        """,
        {"ids": [lease.batch_id for lease in leases], "fences": [lease.fence for lease in leases]},
    )
    return frozenset(row.id for row in rows)


def lock_held(connection: Connection, leases: Collection[Lease], *, durable: bool = True) -> HeldLeases:
    """Returns the leases that are still valid; their batches stay locked until the transaction ends.

    The commit of a transaction that is not `durable` does not wait for the disk (`make_engine`).
    """
    rows = run(
        connection,
        """
            select b.id, b.fence, exists(
                select from service_state where name = :awaited
                    and updated_at > statement_timestamp() - make_interval(secs => :awaited_s)
            ) as awaited, case when not :durable then set_config('synchronous_commit', 'off', true) end
            from batches b
            join unnest(cast(:ids as bigint[]), cast(:fences as int[])) as l (id, fence) using (id, fence)
            where b.status = 'running' order by b.id for update of b
        """,
        {
            "ids": [lease.batch_id for lease in leases],
            "fences": [lease.fence for lease in leases],
            "awaited": AWAITED,
            "awaited_s": AWAITED_S,
            "durable": durable,
        },
    )
    return HeldLeases(frozenset(Lease(row.id, row.fence) for row in rows), any(row.awaited for row in rows))

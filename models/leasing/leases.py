"""Leases: a worker takes batches under leases and renews them with its heartbeat.

A lease is a batch in status running together with its fencing number (`fence`), which grows each time the batch is
leased; a write under an old number changes nothing. Every transaction locks batches before requests, and batches in the
order of their ids, so that no two can deadlock.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from models.notifications import AWAITED, AWAITED_S
from models.planning.worker_costs import curves_to_store
from models.sql import run
from scheduling.costs import LearnedCurves
from scheduling.request import RowLength


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """The work that a worker accepts now: at most `max_rows` rows at once, and none while its engine has a `fault`.

    `curves` are those learned since it registered; None: nothing new. `row_lengths` has the predictions of running rows
    that are better than those made at their arrival, by request id. `guesses` are the tokens that its engine has
    guessed since it started, and those of them that were right. Running rows share `shared_tokens` with others.
    """

    max_rows: int | None = None
    fault: str | None = None
    curves: LearnedCurves | None = None
    row_lengths: Mapping[str, RowLength] = field(default_factory=dict)
    guesses: tuple[int, int] = (0, 0)
    shared_tokens: int = 0


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

    `needs` names what its engine must be able to do. `logprobs` are those of the generated ids, as they were stored.
    The predicted tokens are median and upper quantile, 0 without a prediction.
    """

    id: str
    model: str
    instructions: str
    input: str
    body: Mapping[str, Any]
    limit_tokens: int
    generated_ids: tuple[int, ...]
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
    most_rows: int | None = None  # joiners wait until the running rows with them are at most this many


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal of leases."""

    registered: bool  # False once another process has registered under the worker's name
    wanted_model: str | None  # the model that it is told to change to
    unreachable: bool  # it has taken none of the messages that it was sent after it registered
    held: frozenset[int]  # batches whose lease was renewed
    closed: frozenset[int]  # batches that ended under these leases: their worker has just written their end
    cancels: frozenset[str]  # running requests whose cancel was requested


def take_batch(connection: Connection, batch_id: int, worker: str, lease_s: float) -> TakenBatch | None:
    """Lease a batch and return it with its requests, without cancelled ones; None if it cannot be taken."""
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
                update requests set status = 'cancelled', finished_at = clock_timestamp()
                where batch_id = :batch_id and status = 'in_progress' and cancel_requested_at is not null
            )
            select id, coalesce(base, model) as model, instructions, input, body, limit_tokens, generated_ids, priority,
                tenant, needs, logprobs, case when base is null then '' else model end as adapter,
                coalesce(predicted_tokens, 0) as predicted_tokens,
                coalesce(predicted_upper_tokens, 0) as predicted_upper_tokens
            from requests
            where batch_id = :batch_id and status = 'in_progress' and cancel_requested_at is null
            order by arrived_at, id
        """,
        {"batch_id": batch_id},
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
    """Record that the worker has taken a message; returns whether it had been kept from batches until then."""
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
    offer: WorkerOffer = WorkerOffer(),
) -> Renewal:
    """Write the worker's heartbeat, extend its leases, write their progress; returns the leases kept and the cancels.

    `progress` has each row's generated tokens by lease. A `stopping` worker gets no further batch.
    """
    (row,) = run(
        connection,
        """
            with mine as (
                update workers set heartbeat_at = clock_timestamp(),
                    stopping = stopping or :stopping, max_rows = :max_rows, fault = :fault,
                    curves = coalesce(cast(:curves as jsonb), curves), row_lengths = cast(:row_lengths as jsonb),
                    guessed_tokens = :guessed_tokens, right_guesses = :right_guesses, shared_tokens = :shared_tokens
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
            "max_rows": offer.max_rows,
            "fault": offer.fault,
            "curves": None if offer.curves is None else json.dumps(curves_to_store(offer.curves)),
            "row_lengths": json.dumps(offer.row_lengths),
            "guessed_tokens": offer.guesses[0],
            "right_guesses": offer.guesses[1],
            "shared_tokens": offer.shared_tokens,
            "ids": [lease.batch_id for lease in progress],
            "fences": [lease.fence for lease in progress],
            "tokens": list(progress.values()),
        },
    )
    held = frozenset(row.held)
    closed = _closed(connection, [lease for lease in progress if lease.batch_id not in held])
    return Renewal(row.registered, row.wanted_model, row.unreachable, held, closed, frozenset(row.cancels))


def _closed(connection: Connection, leases: Collection[Lease]) -> frozenset[int]:
    """Return the batches that ended under these leases.

    Needs its own statement: if the renewal waited for the transaction that ended a batch, it does not renew the batch
    but still reads its old state.
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
    """Return the leases that are still valid; their batches stay locked until the transaction ends.

    Unless the transaction is `durable`, its commit does not wait for the disk, as `make_engine` says.
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

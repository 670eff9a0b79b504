"""The planner's queries: who leads, what waits, what is claimed. Decisions are made elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, extract, func, select, text, update
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, JSONB

from models.tables import RequestStatus
from models.tables import StoredRequest as Stored
from scheduling.policy import Assignment
from scheduling.request import Request

PLANNER_LOCK = 0x706C616E  # "plan"
REQUEST_COLUMNS = (
    Stored.id,
    Stored.model,
    extract("epoch", Stored.arrived_at).cast(DOUBLE_PRECISION).label("arrived_at"),
    Stored.prompt_tokens,
    Stored.limit_tokens,
    Stored.predicted_tokens,
    Stored.predicted_upper_tokens,
    func.cardinality(Stored.generated_ids).label("generated"),
    Stored.priority,
    Stored.tenant,
    extract("epoch", Stored.deadline_at).cast(DOUBLE_PRECISION).label("deadline_at"),
    Stored.application,
    Stored.sealed_group,
)

UNFED = select(Stored.id).where(
    Stored.status == RequestStatus.queued,
    Stored.planner_epoch < bindparam("this", type_=BigInteger),
    Stored.predicted_tokens.is_not(None),
)
FEED = (
    update(Stored)
    .where(Stored.id.in_(UNFED.with_for_update(skip_locked=True)))
    .values(planner_epoch=bindparam("this", type_=BigInteger))
    .returning(*REQUEST_COLUMNS)
)


@dataclass(frozen=True, slots=True)
class PlannerInputs:
    """What the planner looks up before each step; instants and ages by the database's clock."""

    now: float
    policy: str | None
    predictor_silent_s: float | None  # None: no predictor was ever heard of
    tau: float | None  # Kendall's tau of recent predictions against what came out
    serving_time_version: str | None


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request for the waiting room, the model that it names, and the batch that it was a half of, if one broke."""

    request: Request
    model: str
    sealed_group: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """An assignment that is now a batch, with those of its requests that were still there to take."""

    batch_id: int
    assignment: Assignment


def lead(connection: Connection) -> int | None:
    """Take the planner's lock for as long as the connection lives and draw an epoch; None while another leads."""
    taken = connection.execute(text("select pg_try_advisory_lock(:lock)"), {"lock": PLANNER_LOCK}).scalar_one()
    return next_epoch(connection) if taken else None


def step_down(connection: Connection) -> None:
    """Give the planner's lock back at once; closing the connection does it too, but a moment later."""
    connection.execute(text("select pg_advisory_unlock(:lock)"), {"lock": PLANNER_LOCK})


def next_epoch(connection: Connection) -> int:
    """An epoch above every other: under it, every queued request is fed again."""
    return int(connection.execute(text("select nextval('planner_epochs')")).scalar_one())


def planner_inputs(connection: Connection) -> PlannerInputs:
    """The time, the policy in force, how the predictor does."""
    row = connection.execute(
        text("""
            select extract(epoch from clock_timestamp())::float8 as now,
                max(value->>'name') filter (where name = 'policy') as policy,
                extract(epoch from clock_timestamp() - max(updated_at) filter (where name = 'predictor'))::float8
                    as predictor_silent_s,
                max((value->>'tau')::float8) filter (where name = 'prediction') as tau,
                (select version from model_versions where kind = 'serving_time' and active) as serving_time_version
            from service_state where name in ('policy', 'predictor', 'prediction')
        """)
    ).one()
    return PlannerInputs(**row._mapping)


def set_policy(connection: Connection, name: str) -> None:
    """Put a policy in force; the planner follows at its next step and feeds it everything that waits."""
    write_state(connection, "policy", {"name": name})


def write_state(connection: Connection, name: str, value: dict[str, Any]) -> None:
    """Replace one of the service's small facts."""
    connection.execute(
        text("""
            insert into service_state (name, value, updated_at) values (:name, :value, clock_timestamp())
            on conflict (name) do update set value = excluded.value, updated_at = excluded.updated_at
        """).bindparams(bindparam("value", type_=JSONB)),
        {"name": name, "value": value},
    )


def feed(connection: Connection, epoch: int) -> list[QueuedRequest]:
    """Claim for this epoch every predicted request that waits and is not claimed yet, in order of arrival.

    Rows that somebody else has locked, a predictor for one, are left for the next step.
    """
    rows = connection.execute(FEED, {"this": epoch})
    waiting = [QueuedRequest(to_request(row), row.model, row.sealed_group) for row in rows]
    return sorted(waiting, key=lambda w: (w.request.arrived_at, w.request.id))


def requests_of_batches(connection: Connection, batch_ids: Sequence[int]) -> dict[int, list[Request]]:
    """The requests of batches that an earlier planner assigned and that have not ended."""
    found: dict[int, list[Request]] = {batch_id: [] for batch_id in batch_ids}
    rows = connection.execute(
        select(*REQUEST_COLUMNS, Stored.batch_id)
        .where(
            Stored.batch_id.in_(batch_ids),
            Stored.status == RequestStatus.in_progress,
        )
        .order_by(Stored.arrived_at, Stored.id)
    )
    for row in rows:
        found[row.batch_id].append(to_request(row))
    return found


def claim(connection: Connection, assignments: Sequence[Assignment], policy: str, epoch: int) -> list[Claim]:
    """Make batches of assignments; requests cancelled meanwhile drop out, and batches that are empty then.

    An assignment that only preempts becomes a batch of size 0.
    """
    wanted = [(n, request) for n, assignment in enumerate(assignments) for request in assignment.requests]
    rows = connection.execute(
        text("""
            with wanted as (
                select * from unnest(
                    cast(:request_ids as text[]), cast(:request_n as int[]), cast(:kept as int[]),
                    cast(:prefills as int[]), cast(:remaining as int[])
                ) as w (request_id, n, kept, prefill, remaining)
            ), taken as (
                select r.id, w.* from requests r join wanted w on w.request_id = r.id
                where r.status = 'queued' and r.planner_epoch = :epoch for update of r
            ), sizes as (
                select n, count(*) as size, max(prefill) as length, max(remaining) as generation_length
                from taken group by n
            ), made as (
                select nextval('batches_id_seq') as batch_id, a.*, coalesce(s.size, 0) as size,
                    coalesce(s.length, 0) as length, coalesce(s.generation_length, 0) as generation_length
                from unnest(
                    cast(:n as int[]), cast(:workers as text[]), cast(:joins as bool[]), cast(:sealed as bool[]),
                    cast(:limits as int[]), cast(:estimated_s as float8[]), cast(:preempts as text[])
                ) as a (n, worker, joins, sealed, iteration_limit, estimated_s, preempts)
                left join sizes s using (n)
                where s.size > 0 or a.preempts <> ''
            ), inserted as (
                insert into batches (id, worker, policy, joins, sealed, preempts, size, length,
                    predicted_generation_length, iteration_limit, estimated_s, sent_at)
                select batch_id, worker, :policy, joins, sealed, string_to_array(preempts, ' '), size, length,
                    generation_length, iteration_limit, estimated_s, clock_timestamp()
                from made
            ), updated as (
                update requests r set status = 'in_progress', batch_id = m.batch_id, attempts = r.attempts + 1,
                    generated_ids = r.generated_ids[1:t.kept], sealed_group = null
                from taken t join made m using (n) where r.id = t.id
            )
            select m.n, m.batch_id, array(select id from taken t where t.n = m.n) as request_ids
            from made m order by m.n
        """),
        {
            "epoch": epoch,
            "policy": policy,
            "request_ids": [request.id for _, request in wanted],
            "request_n": [n for n, _ in wanted],
            "kept": [request.generated for _, request in wanted],
            "prefills": [request.prefill for _, request in wanted],
            "remaining": [request.remaining for _, request in wanted],
            "n": list(range(len(assignments))),
            "workers": [assignment.worker for assignment in assignments],
            "joins": [assignment.joins for assignment in assignments],
            "sealed": [assignment.sealed for assignment in assignments],
            "limits": [assignment.iteration_limit for assignment in assignments],
            "estimated_s": [assignment.estimated_s for assignment in assignments],
            "preempts": [" ".join(assignment.preempts) for assignment in assignments],
        },
    )
    return [Claim(row.batch_id, _with(assignments[row.n], frozenset(row.request_ids))) for row in rows]


def to_request(row: Row[Any]) -> Request:
    """A row of REQUEST_COLUMNS as policies see it."""
    return Request(
        id=row.id,
        arrived_at=row.arrived_at,
        length=row.prompt_tokens,
        limit=row.limit_tokens,
        predicted=row.predicted_tokens,
        predicted_upper=row.predicted_upper_tokens,
        generated=row.generated,
        priority=row.priority,
        tenant=row.tenant,
        deadline_at=row.deadline_at,
        application=row.application,
    )


def _with(assignment: Assignment, taken: frozenset[str]) -> Assignment:
    if len(taken) == len(assignment.requests):
        return assignment
    return replace(assignment, requests=tuple(r for r in assignment.requests if r.id in taken))

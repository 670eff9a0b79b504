"""Requests that have ended: read by waiting calls, streams and the overview, and exported as traces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ARRAY, Connection, Text, any_, bindparam, select, union_all
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from models.client_requests import UNFINISHED, RequestView, read_views, select_views, select_whole_views
from models.sql import text
from models.tables import ANSWERED, UNANSWERED, StoredRequest

# One parameter holds all ids: a thousand parameters would slow each waiting call. Made once for all calls.
THESE = StoredRequest.id == any_(bindparam("ids", type_=ARRAY(Text)))
FIND_UNFINISHED = select(StoredRequest.id).where(THESE, StoredRequest.status.in_(UNFINISHED))
FETCH_ENDED = select_whole_views().where(THESE)


def last_ended(session: Session, limit: int) -> Sequence[RequestView]:
    """Returns the requests of all tenants that ended last, newest first, in any final state."""
    newest = (  # the newest of each of the two partial indexes
        select(StoredRequest.id).where(text(ended)).order_by(StoredRequest.finished_at.desc()).limit(limit).subquery()
        for ended in (ANSWERED, UNANSWERED)
    )
    ids = union_all(*(select(some.c.id) for some in newest))
    ended = select_views().where(StoredRequest.id.in_(ids)).order_by(StoredRequest.finished_at.desc()).limit(limit)
    return list(read_views(session, ended))


def finished(session: Session, ids: Iterable[str]) -> set[str]:
    """Returns the requests among these that are final or deleted, so that no call needs to wait for them."""
    ids = list(ids)
    return set(ids) - set(session.scalars(FIND_UNFINISHED, {"ids": ids}))


def ended(session: Session, ids: Iterable[str]) -> dict[str, RequestView | None]:
    """Returns the final requests among these by id, and None for each deleted one."""
    over = finished(session, ids)
    views = read_views(session, FETCH_ENDED, {"ids": list(over)}) if over else ()
    found = {view.request.id: view for view in views}
    return {request_id: found.get(request_id) for request_id in over}


# Seconds from a request's `finished_at` until it is traced, since its row is written somewhat later than that. A
# request that is written later still is not traced. Not tuned.
GRACE_S = 5


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """An ended request as a trace shows it, without texts; instants are nanoseconds since the epoch."""

    id: str
    tenant: str
    application: str
    model: str
    status: str
    arrived_ns: int
    started_ns: int | None
    finished_ns: int
    prompt_tokens: int
    predicted_tokens: int | None
    output_tokens: int | None
    attempts: int
    policy: str | None
    worker: str | None
    batch: int | None
    batch_size: int | None
    limit_tokens: int
    raw: bool  # the model read the input as it was, without its chat template
    finish_reason: str | None
    error_code: str | None


def take_traced(connection: Connection, limit: int) -> list[TracedRequest]:
    """Returns the requests that ended next after the stored mark, oldest first, and moves the mark behind them.

    The first call only sets the mark. The transaction holds the mark's lock: if it fails, the next one returns the same
    requests again.
    """
    mark = connection.execute(text("select value from service_state where name = 'traced' for update")).scalar()
    if mark is None:
        connection.execute(
            text("""
                insert into service_state (name, value)
                values ('traced', jsonb_build_object('at', clock_timestamp(), 'id', '')) on conflict do nothing
            """)
        )
        return []
    rows = connection.execute(
        text("""
            with ended as (
                (select * from requests where status in ('completed', 'incomplete')
                    and finished_at >= cast(:at as timestamptz) and (finished_at, id) > (cast(:at as timestamptz), :id)
                    and finished_at < statement_timestamp() - make_interval(secs => :grace_s)
                order by finished_at, id limit :limit)
                union all
                (select * from requests where status in ('failed', 'cancelled')
                    and finished_at >= cast(:at as timestamptz) and (finished_at, id) > (cast(:at as timestamptz), :id)
                    and finished_at < statement_timestamp() - make_interval(secs => :grace_s)
                order by finished_at, id limit :limit)
            )
            select r.id, r.tenant, r.application, r.model, r.status,
                (extract(epoch from r.arrived_at) * 1000000000)::bigint as arrived_ns,
                (extract(epoch from r.started_at) * 1000000000)::bigint as started_ns,
                (extract(epoch from r.finished_at) * 1000000000)::bigint as finished_ns,
                r.prompt_tokens, r.predicted_tokens, r.output_tokens, r.attempts,
                b.policy, b.worker, b.id as batch, b.size as batch_size, r.limit_tokens,
                coalesce((r.body->>'raw')::bool, false) as raw, r.finish_reason, r.error->>'code' as error_code,
                r.finished_at::text as at
            from ended r left join batches b on b.id = r.batch_id order by r.finished_at, r.id limit :limit
        """),
        {**mark, "grace_s": GRACE_S, "limit": limit},
    ).all()
    if rows:
        connection.execute(
            text("""
                update service_state set value = :mark, updated_at = clock_timestamp() where name = 'traced'
            """).bindparams(bindparam("mark", type_=JSONB)),
            {"mark": {"at": rows[-1].at, "id": rows[-1].id}},
        )
    return [TracedRequest(*row[:-1]) for row in rows]

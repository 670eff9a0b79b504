"""Reads requests that have ended: for waiting calls, streams and the overview, and for the export of traces."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ARRAY, Connection, Text, any_, bindparam, select, union_all
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from models.client_requests import RequestView, read_views, select_views, select_whole_views
from models.connections.sql import text
from models.request_life import UNFINISHED
from models.tables import ANSWERED, UNANSWERED, StoredRequest

# One parameter holds all ids, because a thousand parameters would slow each waiting call. The queries are built once.
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


# Seconds from a request's `finished_at` until it is traced, because its row is written somewhat after that instant. A
# request whose row is written more than GRACE_S after it is never traced. Not tuned.
GRACE_S = 5
ENDED_AFTER_MARK = """
    (select * from requests where {ended}
        and finished_at >= cast(:at as timestamptz) and (finished_at, id) > (cast(:at as timestamptz), :id)
        and finished_at < statement_timestamp() - make_interval(secs => :grace_s)
    order by finished_at, id limit :limit)
"""


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
    raw: bool  # whether the model read the input as it was, without its chat template
    finish_reason: str | None
    error_code: str | None


@dataclass(frozen=True, slots=True)
class TracedRequests:
    """The first requests that ended after the stored mark `after`, oldest first; `mark` is to be stored next."""

    requests: list[TracedRequest]
    after: Mapping[str, Any]
    mark: Mapping[str, Any]


def read_traced(connection: Connection, limit: int) -> TracedRequests | None:
    """Returns the first requests that ended after the stored mark, if any; the very first call only sets the mark.

    The caller traces them and then calls `move_mark`. If it fails before that, the next call returns them again.
    """
    mark = connection.execute(text("select value from service_state where name = 'traced'")).scalar()
    if mark is None:
        connection.execute(
            text("""
                insert into service_state (name, value)
                values ('traced', jsonb_build_object('at', clock_timestamp(), 'id', '')) on conflict do nothing
            """)
        )
        return None
    rows = connection.execute(
        text(f"""
            with ended as (
                {" union all ".join(ENDED_AFTER_MARK.format(ended=ended) for ended in (ANSWERED, UNANSWERED))}
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
        """),  # noqa: S608  # constants
        {**mark, "grace_s": GRACE_S, "limit": limit},
    ).all()
    if not rows:
        return None
    return TracedRequests([TracedRequest(*row[:-1]) for row in rows], mark, {"at": rows[-1].at, "id": rows[-1].id})


def move_mark(connection: Connection, traced: TracedRequests) -> None:
    """Moves the stored mark behind these requests, unless another process has moved it."""
    connection.execute(
        text("""
            update service_state set value = :mark, updated_at = clock_timestamp()
            where name = 'traced' and value = :after
        """).bindparams(bindparam("mark", type_=JSONB), bindparam("after", type_=JSONB)),
        {"mark": traced.mark, "after": traced.after},
    )

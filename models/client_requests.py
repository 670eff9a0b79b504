"""Requests as their clients see them: insert, read, list, cancel, delete. Each call is one statement of one tenant."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, bindparam, case, delete, func, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session, defer

from models.tables import RequestStatus, StoredBatch, StoredRequest

OPEN = (RequestStatus.queued, RequestStatus.in_progress)


class IdempotencyKeyReused(Exception):
    """The Idempotency-Key was used before with a different body."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"This Idempotency-Key belongs to {id}, which was made from a different body.")


class StillInProgress(Exception):
    """A response that a worker is computing cannot be deleted; cancel it first."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"{id} is in progress; cancel it before you delete it.")


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A validated request on its way into the database; lengths in tokens, `body` as `tables.Request.body` says."""

    tenant: str
    model: str
    application: str
    instructions: str
    input: str
    body: dict[str, Any]
    prompt_tokens: int
    input_tokens: int
    limit_tokens: int
    priority: int = 0
    deadline_s: float | None = None
    eta_s: float | None = None


STORED = (
    "tenant",
    "model",
    "application",
    "instructions",
    "input",
    "body",
    "prompt_tokens",
    "input_tokens",
    "limit_tokens",
    "priority",
)
# Written out because it is what every accepted request waits for: the ORM's insert takes three times the time.
SUBMIT = text("""
    insert into requests (id, idempotency_key, idempotency_sha256, tenant, model, application, instructions, input,
        body, prompt_tokens, input_tokens, limit_tokens, priority, deadline_at, eta_at)
    values (:id, :idempotency_key, :idempotency_sha256, :tenant, :model, :application, :instructions, :input, :body,
        :prompt_tokens, :input_tokens, :limit_tokens, :priority,
        clock_timestamp() + make_interval(secs => :deadline_s), clock_timestamp() + make_interval(secs => :eta_s))
    on conflict (tenant, idempotency_key) where idempotency_key is not null do nothing
    returning arrived_at, deadline_at, eta_at
""").bindparams(bindparam("body", type_=JSONB), bindparam("deadline_s", type_=Double), bindparam("eta_s", type_=Double))


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request with its batch at one instant of the database's clock."""

    request: StoredRequest
    batch: StoredBatch | None
    tokens_so_far: int
    now: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list; `more` says whether another follows."""

    seen: list[RequestView]
    more: bool


def new_id() -> str:
    """resp_ and 32 hex digits, as OpenAI's look."""
    return f"resp_{uuid.uuid4().hex}"


def submit(
    session: Session, new: NewRequest, *, idempotency_key: str | None = None, digest: bytes | None = None
) -> RequestView:
    """Store a request as queued; it as the database has it now.

    The same tenant, key and digest of the body give the first request again; another digest raises
    IdempotencyKeyReused.
    """
    given = {name: getattr(new, name) for name in STORED}
    given |= {"id": new_id(), "idempotency_key": idempotency_key}
    row = (
        session.connection()
        .execute(
            SUBMIT,
            {
                **given,
                "idempotency_sha256": digest,
                "deadline_s": new.deadline_s,
                "eta_s": new.eta_s,
            },
        )
        .one_or_none()
    )
    session.commit()
    if row is not None:
        stored = StoredRequest(**given, **row._mapping, status=RequestStatus.queued, attempts=0)
        return RequestView(stored, None, 0, row.arrived_at)
    earlier = next(
        _rows(
            session, seen().where(StoredRequest.tenant == new.tenant, StoredRequest.idempotency_key == idempotency_key)
        ),
        None,
    )
    if earlier is None:  # deleted between the two statements, so the key is free again
        return submit(session, new, idempotency_key=idempotency_key, digest=digest)
    if earlier.request.idempotency_sha256 != digest:
        raise IdempotencyKeyReused(earlier.request.id)
    return earlier


def seen() -> Select[StoredRequest, StoredBatch, int, datetime]:
    """Requests with their batches, to be narrowed down by the caller; the generated ids stay in the database."""
    return (
        select(
            StoredRequest,
            StoredBatch,
            func.cardinality(StoredRequest.generated_ids).label("tokens"),
            func.clock_timestamp().label("now"),
        )
        .outerjoin(StoredBatch, StoredBatch.id == StoredRequest.batch_id)
        .options(defer(StoredRequest.generated_ids, raiseload=True))
    )


def fetch(session: Session, tenant: str | None, id: str) -> RequestView | None:
    """One request of this tenant; of any with None, which only the operator's pages may say."""
    return next(_rows(session, seen().where(StoredRequest.id == id, *_of(tenant))), None)


def page(
    session: Session,
    tenant: str | None,
    *,
    statuses: Sequence[RequestStatus] = (),
    application: str | None = None,
    after: str | None = None,
    limit: int = 20,
    oldest_first: bool = False,
) -> Page | None:
    """Requests by arrival, beginning behind the request `after`; None if this tenant has no such request.

    Reads `limit + 1` entries of an index, however many rows there are: no offset, no count.
    """
    statement = seen().where(*_of(tenant))
    if statuses:
        statement = statement.where(StoredRequest.status.in_(statuses))
    if application is not None:
        statement = statement.where(StoredRequest.application == application)
    place = tuple_(StoredRequest.arrived_at, StoredRequest.id)
    if after is not None:
        arrived_at = session.scalar(select(StoredRequest.arrived_at).where(StoredRequest.id == after, *_of(tenant)))
        if arrived_at is None:
            return None
        cursor = (arrived_at, after)
        statement = statement.where(place > cursor if oldest_first else place < cursor)
    order = (
        [StoredRequest.arrived_at, StoredRequest.id]
        if oldest_first
        else [StoredRequest.arrived_at.desc(), StoredRequest.id.desc()]
    )
    rows = list(_rows(session, statement.order_by(*order).limit(limit + 1)))
    return Page(rows[:limit], len(rows) > limit)


def last_answers(session: Session, limit: int) -> Sequence[RequestView]:
    """What ended last, of all tenants, however it ended."""
    ended = StoredRequest.finished_at.is_not(None)
    return list(_rows(session, seen().where(ended).order_by(StoredRequest.finished_at.desc()).limit(limit)))


def cancel(session: Session, tenant: str, id: str) -> None:
    """Cancel what waits at once and ask for what runs; a final one, or none such, stays as it is."""
    waits = StoredRequest.status == RequestStatus.queued
    now = func.clock_timestamp()
    session.execute(
        update(StoredRequest)
        .where(StoredRequest.id == id, StoredRequest.tenant == tenant, StoredRequest.status.in_(OPEN))
        .values(
            status=case((waits, RequestStatus.cancelled), else_=StoredRequest.status),
            finished_at=case((waits, now)),
            cancel_requested_at=func.coalesce(StoredRequest.cancel_requested_at, now),
        )
        .execution_options(synchronize_session=False)
    )
    session.commit()


def remove(session: Session, tenant: str, id: str) -> bool:
    """Delete a request that no worker computes; False if there is none such, StillInProgress if one does."""
    removed = session.scalar(
        delete(StoredRequest)
        .where(
            StoredRequest.id == id, StoredRequest.tenant == tenant, StoredRequest.status != RequestStatus.in_progress
        )
        .returning(StoredRequest.id)
        .execution_options(synchronize_session=False)
    )
    session.commit()
    if removed is None and session.scalar(
        select(StoredRequest.id).where(StoredRequest.id == id, StoredRequest.tenant == tenant)
    ):
        raise StillInProgress(id)
    return removed is not None


def finished(session: Session, ids: Iterable[str]) -> set[str]:
    """Which of these requests are final or gone: nobody needs to wait for them any longer."""
    ids = list(ids)
    waiting = session.scalars(select(StoredRequest.id).where(StoredRequest.id.in_(ids), StoredRequest.status.in_(OPEN)))
    return set(ids) - set(waiting)


def _of(tenant: str | None) -> list[ColumnElement[bool]]:
    return [] if tenant is None else [StoredRequest.tenant == tenant]


def _rows(session: Session, statement: Select[StoredRequest, StoredBatch, int, datetime]) -> Iterator[RequestView]:
    for request, batch, tokens, now in session.execute(statement):
        yield RequestView(request, batch, tokens, now)

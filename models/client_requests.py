"""Fetches, lists, cancels and deletes requests for clients. Most functions execute one statement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    func,
    null,
    select,
    true,
    tuple_,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.orm import Session, aliased, defer

from models import notifications
from models.connections.sql import text
from models.promise_tables import StoredPromise
from models.request_ids import arrival_of
from models.tables import RequestStatus, StoredBatch, StoredRequest

Entry = TypeVar("Entry")
# A queued request ends at once. A running one ends when its worker has read that it is cancelled.
CANCEL = """
    update requests /* cancel */ set status = case when status = 'queued' then 'cancelled' else status end,
        finished_at = case when status = 'queued' then clock_timestamp() end,
        cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
    where status in ('queued', 'in_progress') and id = any(array({which})) returning id
"""


class StillInProgress(Exception):
    """A response that a worker is computing cannot be deleted; cancel it first."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request and its batch as they were at the instant `now` of the database's clock."""

    request: StoredRequest
    batch: StoredBatch | None
    tokens_so_far: int
    now: datetime
    # log probabilities of the answer's tokens in the API's form, as JSON; not loaded for lists
    logprobs: str | None = None
    promise: StoredPromise | None = None  # of an accepted quote


@dataclass(frozen=True, slots=True)
class Page(Generic[Entry]):
    """One page of a list; `more` says whether there is a next one."""

    entries: list[Entry]
    more: bool


# The promise of one request. The limit makes Postgres look it up for each row; a join might read all promises.
PROMISE = aliased(
    StoredPromise, select(StoredPromise).where(StoredPromise.request_id == StoredRequest.id).limit(1).lateral("promise")
)
View = Select[StoredRequest, StoredBatch, int, datetime, Any, StoredPromise]
TEXTS = (StoredRequest.instructions, StoredRequest.input, StoredRequest.body, StoredRequest.output_text)
# A page with texts ends early once it has this many bytes, so that one list takes no more than some tenths of a second.
PAGE_BYTES = 2 * 2**20
PART = 10  # requests that a page with texts reads at once
# The stored size of a request's large columns in bytes, as SQL; Postgres knows it without reading the columns.
SIZE = " + ".join(
    f"coalesce(pg_column_size({column}), 0)" for column in ("instructions", "input", "body", "output_text", "logprobs")
)


def select_views(logprobs: ColumnElement[Any] | None = None, *, texts: bool = False) -> View:
    """Selects RequestView's columns for all requests, without generated ids, and with large texts only if `texts`."""
    deferred = [StoredRequest.generated_ids] if texts else [StoredRequest.generated_ids, *TEXTS]
    return (
        select(
            StoredRequest,
            StoredBatch,
            func.cardinality(StoredRequest.generated_ids).label("tokens"),
            func.clock_timestamp().label("now"),
            null() if logprobs is None else logprobs,
            PROMISE,
        )
        .outerjoin(StoredBatch, StoredBatch.id == StoredRequest.batch_id)
        .outerjoin(PROMISE, true())
        .options(*(defer(column, raiseload=True) for column in deferred))
    )


def select_whole_views() -> View:
    """Selects RequestView's columns with texts and log probabilities; lists do not use it, because both may be long."""
    return select_views(cast(StoredRequest.logprobs, Text), texts=True)


OF_TENANT = StoredRequest.tenant == func.coalesce(bindparam("tenant"), StoredRequest.tenant)
OF_ID = (StoredRequest.id == bindparam("id"), OF_TENANT)
FETCH = select_whole_views().where(*OF_ID)  # built once, because every poll uses it
FETCH_TEXTS = select_views(texts=True).where(*OF_ID)


def fetch(session: Session, tenant: str | None, id: str, *, logprobs: bool = True) -> RequestView | None:
    """Returns one request of this tenant; `tenant` None means any, for the operator's pages only."""
    return next(read_views(session, FETCH if logprobs else FETCH_TEXTS, {"id": id, "tenant": tenant}), None)


def page(
    session: Session,
    tenant: str | None,
    *,
    statuses: Sequence[RequestStatus] = (),
    application: str | None = None,
    after: str | None = None,
    limit: int = 20,
    oldest_first: bool = False,
    texts: bool = False,
) -> Page[RequestView] | None:
    """Returns requests by arrival, newest first unless `oldest_first`, beginning after the request `after`.

    Returns None if `after` is another tenant's or an unknown id without a time; a page of texts ends at PAGE_BYTES.
    """
    names = array([status.value for status in statuses or RequestStatus], type_=Text)
    state = func.unnest(names).table_valued("status").render_derived()
    of_one_status = select(StoredRequest.id, StoredRequest.arrived_at).where(
        StoredRequest.status == state.c.status, *_of_tenant(tenant)
    )
    if application is not None:
        of_one_status = of_one_status.where(StoredRequest.application == application)
    position = tuple_(StoredRequest.arrived_at, StoredRequest.id)
    if after is not None:
        found = session.execute(
            select(StoredRequest.tenant, StoredRequest.arrived_at).where(StoredRequest.id == after)
        ).one_or_none()
        arrived_at = arrival_of(after) if found is None else found.arrived_at
        if arrived_at is None or (found is not None and tenant not in (None, found.tenant)):
            return None
        cursor = (arrived_at, after)
        of_one_status = of_one_status.where(position > cursor if oldest_first else position < cursor)
    each = of_one_status.order_by(*_by_arrival(StoredRequest, oldest_first)).limit(limit + 1).lateral()
    chosen = select(each.c.id).select_from(state.join(each, true())).order_by(*_by_arrival(each.c, oldest_first))
    order = _by_arrival(StoredRequest, oldest_first)
    if not texts:
        listed = select_views().where(StoredRequest.id.in_(chosen.limit(limit + 1)))
        views = list(read_views(session, listed.order_by(*order)))
        return Page(views[:limit], len(views) > limit)
    ids = session.scalars(chosen.limit(limit + 1)).all()
    size = func.octet_length(StoredRequest.body.cast(Text)) + func.octet_length(StoredRequest.instructions)
    size += func.coalesce(func.octet_length(StoredRequest.output_text), 0)
    with_sizes = select_views(type_coerce(size, Integer), texts=True).options(
        defer(StoredRequest.input, raiseload=True)
    )
    views, total = [], 0
    for begin in range(0, min(limit, len(ids)), PART):
        part = with_sizes.where(StoredRequest.id.in_(ids[begin : min(begin + PART, limit)])).order_by(*order)
        for request, batch, tokens, now, size_bytes, promise in session.execute(part):
            total += size_bytes
            if views and total > PAGE_BYTES:
                return Page(views, more=True)
            views.append(RequestView(request, batch, tokens, now, None, promise))
    return Page(views, len(ids) > limit)


def cancel(session: Session, tenant: str | None, ids: Sequence[str]) -> list[str]:
    """Cancels queued requests at once and marks running ones, which their workers then stop; returns the ids of both.

    Ignores final and unknown ids. Notifies waiting calls. `tenant` None means all tenants.
    """
    # the rows are locked in the order of their ids, so that two calls cannot deadlock
    which = """
        select id from requests where id = any(cast(:ids as text[])) and status in ('queued', 'in_progress')
            and tenant = coalesce(cast(:tenant as text), tenant) order by id for update
    """
    cancelled = session.scalars(text(CANCEL.format(which=which)), {"ids": list(ids), "tenant": tenant}).all()
    session.commit()
    notifications.notify_ended(session.connection(), cancelled)
    session.commit()
    return list(cancelled)


def remove(session: Session, tenant: str, id: str) -> bool:
    """Deletes a request; returns False if the tenant has no such request. Raises StillInProgress while it runs."""
    this_one = (StoredRequest.id == id, StoredRequest.tenant == tenant)
    removed = session.execute(
        delete(StoredRequest)
        .where(*this_one, StoredRequest.status != RequestStatus.in_progress)
        .returning(StoredRequest.id)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    session.commit()
    if removed is None and session.scalar(select(StoredRequest.id).where(*this_one)):
        raise StillInProgress(f"{id} is in progress; cancel it before you delete it.")
    return removed is not None


def _by_arrival(row: Any, oldest_first: bool) -> list[ColumnElement[Any]]:
    """Returns the order of a list of requests; `row` has the columns `arrived_at` and `id`."""
    return [row.arrived_at, row.id] if oldest_first else [row.arrived_at.desc(), row.id.desc()]


def _of_tenant(tenant: str | None) -> list[ColumnElement[bool]]:
    return [] if tenant is None else [StoredRequest.tenant == tenant]


def read_views(session: Session, statement: View, values: Mapping[str, Any] | None = None) -> Iterator[RequestView]:
    """Yields the requests that a statement of `select_views` or `select_whole_views` finds with these values."""
    for row in session.execute(statement, values):
        yield RequestView(*row)

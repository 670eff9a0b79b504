"""Reads requests for the planner: newly queued ones, and those of batches that an earlier planner assigned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, extract, func, literal_column, select, update
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION

from models.sql import text
from models.tables import StoredRequest
from scheduling.request import Request

REQUEST_COLUMNS = (
    StoredRequest.id,
    StoredRequest.model,
    extract("epoch", StoredRequest.arrived_at).cast(DOUBLE_PRECISION).label("arrived_at"),
    StoredRequest.prompt_tokens,
    StoredRequest.limit_tokens,
    StoredRequest.predicted_tokens,
    StoredRequest.predicted_upper_tokens,
    func.cardinality(StoredRequest.generated_ids).label("generated"),
    StoredRequest.priority,
    StoredRequest.tenant,
    extract("epoch", StoredRequest.deadline_at).cast(DOUBLE_PRECISION).label("deadline_at"),
    StoredRequest.application,
    StoredRequest.needs,
    StoredRequest.outgrew_tokens,
    StoredRequest.sealed_group,
    StoredRequest.suspect_group,
    func.coalesce(StoredRequest.job_id, "").label("job"),
    StoredRequest.held,
)

# Literals, not parameters, because a generic plan can use the partial indexes only with literals.
QUEUED = StoredRequest.status == literal_column("'queued'")
IN_PROGRESS = StoredRequest.status == literal_column("'in_progress'")
NEW_REQUESTS = select(StoredRequest.id).where(
    QUEUED,
    StoredRequest.planner_epoch < bindparam("epoch", type_=BigInteger),
    StoredRequest.predicted_tokens.is_not(None),
)
# An array makes Postgres look the rows up one by one. Postgres cannot estimate how many requests are new, since ended
# ones keep the epochs of earlier planners: with a join it read all requests at every step behind a queue of 100,000.
FETCH_NEW_REQUESTS = (
    update(StoredRequest)
    .where(StoredRequest.id == func.any(func.array(NEW_REQUESTS.with_for_update(skip_locked=True).scalar_subquery())))
    .values(planner_epoch=bindparam("epoch", type_=BigInteger))
    .returning(*REQUEST_COLUMNS)
)


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued request with the model that it names.

    `sealed_group` is set if the request was in a batch that ran out of memory: the batch whose halves run alone.
    `suspect_group` is set if an engine or a worker failed while it was serving the request together with this group.
    """

    request: Request
    model: str
    sealed_group: str | None
    suspect_group: str | None = None
    held: bool = False  # its job is paused


def fetch_new_requests(connection: Connection, epoch: int) -> list[QueuedRequest]:
    """Returns every queued and predicted request that this epoch has not fetched yet, in order of arrival.

    Marks them with the epoch, so that the next call does not return them again. Rows that another transaction has
    locked, such as a predictor's, are skipped; a later call returns them.
    """
    rows = connection.execute(FETCH_NEW_REQUESTS, {"epoch": epoch})
    fetched = [QueuedRequest(to_request(row), row.model, row.sealed_group, row.suspect_group, row.held) for row in rows]
    return sorted(fetched, key=lambda queued: (queued.request.arrived_at, queued.request.id))


def ends_of(connection: Connection, request_ids: Sequence[str]) -> dict[str, float | None]:
    """Returns the times of these requests' answers by id, as Unix times; None for failed and cancelled requests.

    Leaves out requests that have not ended or were deleted.
    """
    rows = connection.execute(
        text("""
            select id, case when status in ('completed', 'incomplete') then extract(epoch from finished_at)::float8 end
                as answered_at
            from requests where id = any(cast(:ids as text[])) and finished_at is not null
        """),
        {"ids": list(request_ids)},
    )
    return {row.id: row.answered_at for row in rows}


def requests_of_batches(connection: Connection, batch_ids: Sequence[int]) -> dict[int, list[Request]]:
    """Returns the unfinished requests of these batches by batch id, in order of arrival; a list may be empty."""
    found: dict[int, list[Request]] = {batch_id: [] for batch_id in batch_ids}
    rows = connection.execute(
        select(*REQUEST_COLUMNS, StoredRequest.batch_id)
        .where(
            StoredRequest.batch_id.in_(batch_ids),
            IN_PROGRESS,
        )
        .order_by(StoredRequest.arrived_at, StoredRequest.id)
    )
    for row in rows:
        found[row.batch_id].append(to_request(row))
    return found


def to_request(row: Row[Any]) -> Request:
    """Makes the scheduling request of a row of REQUEST_COLUMNS."""
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
        needs=frozenset(row.needs),
        outgrew_tokens=row.outgrew_tokens,
        job=row.job,
    )

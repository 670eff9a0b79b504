"""Reads requests for the planner: newly queued ones, and those of batches that an earlier planner assigned."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any

from sqlalchemy import Connection

from models.connections.sql import run
from models.registered_workers import ADAPTER, TOKENS_OF
from models.tables import PREDICTED
from scheduling.request import Request

# The SQL of each value that the planner reads of a request, by the value's name in the result
REQUEST_COLUMNS = {
    "id": "r.id",
    "model": "coalesce(r.base, r.model)",
    "arrived_at": "extract(epoch from r.arrived_at)::float8",
    "prompt_tokens": "r.prompt_tokens",
    "limit_tokens": "r.limit_tokens",
    "predicted_tokens": "r.predicted_tokens",
    "predicted_upper_tokens": "r.predicted_upper_tokens",
    "generated": "least(cardinality(r.generated_ids), r.limit_tokens - 1)",  # a row that lost its end repeats a token
    "tier": "r.tier",
    "priority": "r.priority",
    "tenant": "r.tenant",
    "deadline_at": "extract(epoch from r.deadline_at)::float8",
    "application": "r.application",
    # A request needs a worker that resumes its tokens, unless it outgrew its worker and begins anew on a larger one, or
    # waits in a group, whose requests may have tokens of several models, which no worker resumes together.
    "needs": f"""array_remove(r.needs || array[
        case when r.base is not null then '{ADAPTER}' || r.model end,
        case when r.generated_ids <> '{{}}' and r.outgrew_tokens = 0 and r.sealed_group is null
            and r.suspect_group is null then '{TOKENS_OF}' || r.generated_by end
    ], null)""",
    "outgrew_tokens": "r.outgrew_tokens",
    "sealed_group": "r.sealed_group",
    "suspect_group": "r.suspect_group",
    "job": "coalesce(r.job_id, '')",
    "held": "r.held",
    "shares": "r.twin_sha256 is not null",
}
COLUMNS = ", ".join(f"{sql} as {name}" for name, sql in REQUEST_COLUMNS.items())

# The array makes Postgres look the rows up one by one. With a join it read all requests at every step behind a queue of
# 100,000: it cannot estimate how many requests are new, because ended ones keep the epochs of earlier planners.
FETCH_NEW_REQUESTS = f"""
    with others as (
        select id from requests where {PREDICTED} and tier > 'flex' and planner_epoch < cast(:epoch as bigint)
        order by planner_epoch limit cast(:most as int) for update skip locked
    ), background as (
        select id from requests where {PREDICTED} and tier <= 'flex' and planner_epoch < cast(:epoch as bigint)
        order by planner_epoch limit cast(:most as int) - (select count(*) from others) for update skip locked
    )
    update requests r set planner_epoch = cast(:epoch as bigint)
    where r.id = any(array(select id from others union all select id from background))
    returning {COLUMNS}
"""  # noqa: S608  # constants
REQUESTS_OF_BATCHES = f"""
    select {COLUMNS}, r.batch_id from requests r
    where r.batch_id = any(cast(:ids as bigint[])) and r.status = 'in_progress' order by r.arrived_at, r.id
"""  # noqa: S608  # constants


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued request, as policies see it.

    `sealed_group` is its batch that ran out of memory, `suspect_group` the group with which it was in a failed engine.
    """

    request: Request
    sealed_group: str | None = None
    suspect_group: str | None = None
    held: bool = False  # whether its job is paused
    shares: bool = False  # whether it may be a twin of another request

    @property
    def model(self) -> str:
        """The model that answers the request."""
        return self.request.model


def fetch_new_requests(connection: Connection, epoch: int, most: int) -> list[QueuedRequest]:
    """Returns at most `most` queued and predicted requests that this epoch has not fetched yet, in order of arrival.

    Prefers those that are no background work, then those that no planner has fetched. Marks what it returns with the
    epoch, so that the next call does not return it again. Skips rows that another transaction, such as a predictor's,
    has locked; a later call returns them.
    """
    rows = run(connection, FETCH_NEW_REQUESTS, {"epoch": epoch, "most": most})
    fetched = [
        QueuedRequest(to_request(row), row.sealed_group, row.suspect_group, row.held, row.shares) for row in rows
    ]
    return sorted(fetched, key=lambda queued: (queued.request.arrived_at, queued.request.id))


def fetched_of(connection: Connection, tenants: Collection[str], jobs: Collection[str]) -> set[str]:
    """Returns the ids of the queued requests of these tenants and of these bulk jobs that were fetched."""
    if not (tenants or jobs):
        return set()
    fetched = """
        select id from requests where status = 'queued' and planner_epoch > 0
            and (tenant = any(cast(:tenants as text[])) or job_id = any(cast(:jobs as text[])))
    """
    return {row.id for row in run(connection, fetched, {"tenants": list(tenants), "jobs": list(jobs)})}


def fetch_again(connection: Connection, ids: Collection[str]) -> None:
    """Lets `fetch_new_requests` return these requests again, as far as they still wait; locks them in one order."""
    again = """
        update requests set planner_epoch = 0 where id = any(array(
            select id from requests where id = any(cast(:ids as text[])) and status = 'queued' order by id for update
        ))
    """
    if ids:
        run(connection, again, {"ids": list(ids)})


def queued_by_model(connection: Connection, models: Sequence[str]) -> dict[str, int]:
    """Returns the number of queued requests by model, without held ones; leaves out models that have none."""
    rows = run(
        connection,
        """
            select coalesce(base, model) as model, count(*) as requests from requests
            where status = 'queued' and not held and coalesce(base, model) = any(cast(:models as text[])) group by 1
        """,
        {"models": list(models)},
    )
    return {row.model: row.requests for row in rows}


def ends_of(connection: Connection, request_ids: Sequence[str]) -> dict[str, float | None]:
    """Returns when the ended ones of these requests were answered (Unix time), by id; None if failed or cancelled."""
    rows = run(
        connection,
        """
            select id, case when status in ('completed', 'incomplete') then extract(epoch from finished_at)::float8 end
                as answered_at
            from requests where id = any(cast(:ids as text[])) and finished_at is not null
        """,
        {"ids": list(request_ids)},
    )
    return {row.id: row.answered_at for row in rows}


def requests_of_batches(connection: Connection, batch_ids: Sequence[int]) -> dict[int, list[Request]]:
    """Returns the unfinished requests of these batches by batch id, in order of arrival; a list may be empty."""
    found: dict[int, list[Request]] = {batch_id: [] for batch_id in batch_ids}
    for row in run(connection, REQUESTS_OF_BATCHES, {"ids": list(batch_ids)}):
        found[row.batch_id].append(to_request(row))
    return found


def to_request(row: Any) -> Request:
    """Makes a policy's request from a row of REQUEST_COLUMNS; strings that many requests share are kept only once."""
    return Request(
        id=row.id,
        arrived_at=row.arrived_at,
        length=row.prompt_tokens,
        limit=row.limit_tokens,
        predicted=row.predicted_tokens,
        predicted_upper=row.predicted_upper_tokens,
        generated=row.generated,
        tier=row.tier,
        priority=row.priority,
        tenant=intern(row.tenant),
        deadline_at=row.deadline_at,
        application=intern(row.application),
        needs=frozenset(row.needs),
        outgrew_tokens=row.outgrew_tokens,
        job=intern(row.job),
        model=intern(row.model),
    )

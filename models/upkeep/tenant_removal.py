"""Removes a tenant in short transactions: its keys, sign-ins, settings, webhooks, bulk jobs, files and requests.

Usage and the audit stay. The files that the tenant deleted itself are left to the process `chores`.
"""

from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models import client_requests
from models.bulk.bulk_tables import UNENDED
from models.bulk.stored_files import CHUNKS_AT_ONCE
from models.connections.sql import text
from models.tenants import tenant_limits

AT_ONCE = 500  # rows that one statement deletes or cancels, which takes some tenths of a second. Not tuned
REQUESTS_AT_ONCE = 100  # a request may have a megabyte. Not tuned
UNFINISHED = "status in ('queued', 'in_progress')"
OWN_KEYS = "key_id in (select id from api_keys where tenant = :tenant)"
OWN_FILES = "tenant = :tenant and deleted_at is null"


def _of_first(parents: str, own: str, children: str, id: str, order: str) -> str:
    """Returns the condition and the order of one parent's children: the first that meets `own` and has children.

    With `=` instead of `between`, Postgres would sort by the second column alone and might read another index.
    """
    child = f"exists (select from {children} where {id} = parent.id)"
    first = f"(select id from {parents} parent where {own} and {child} limit 1)"  # noqa: S608  # constants
    return f"{id} between {first} and {first} order by {id}, {order}"


# What is deleted, in this order: by table, the condition and the order of its rows, and the most that one statement
# deletes. Rows are deleted before the rows by which they are found. Each order is that of an index: without it a
# statement would read its table from the beginning, past all deleted rows.
PARTS = {
    "operator_sessions": (OWN_KEYS, AT_ONCE),
    "rate_counts": (OWN_KEYS, AT_ONCE),
    "api_keys": ("tenant = :tenant order by id", AT_ONCE),
    "work_charges": ("tenant = :tenant order by at", AT_ONCE),
    "webhook_deliveries": (
        _of_first("webhook_endpoints", "tenant = :tenant", "webhook_deliveries", "endpoint_id", "id"),
        AT_ONCE,
    ),
    "webhook_endpoints": ("tenant = :tenant order by id", AT_ONCE),
    "bulk_lines": (_of_first("bulk_jobs", "tenant = :tenant", "bulk_lines", "job_id", "line"), AT_ONCE),
    "bulk_jobs": ("tenant = :tenant order by created_at", AT_ONCE),
    "file_chunks": (_of_first("files", OWN_FILES, "file_chunks", "file_id", "first_line"), CHUNKS_AT_ONCE),
    "files": (f"{OWN_FILES} order by created_at", AT_ONCE),
    # with `=`, Postgres would drop the tenant from the order, and might read another index
    "promises": ("tenant between :tenant and :tenant order by tenant, request_id", AT_ONCE),
    "requests": (f"tenant = :tenant and not ({UNFINISHED}) order by status, arrived_at", REQUESTS_AT_ONCE),
}
HELD = text(f"""
    select (select count(*) from tenants where name = :tenant) as settings,
        (select count(*) from api_keys where tenant = :tenant) as keys,
        (select count(*) from webhook_endpoints where tenant = :tenant) as webhooks,
        (select count(*) from files where tenant = :tenant and deleted_at is null) as files,
        (select count(*) from bulk_jobs where tenant = :tenant) as bulk_jobs,
        (select count(*) from bulk_jobs where tenant = :tenant and {UNENDED}) as unended_bulk_jobs,
        (select count(*) from requests where tenant = :tenant) as requests,
        (select count(*) from requests where tenant = :tenant and {UNFINISHED}) as unfinished_requests
""")  # noqa: S608  # constants


@dataclass(frozen=True, slots=True)
class TenantHoldings:
    """How many rows of each kind the database holds for a tenant."""

    settings: int  # 1 if an operator has set limits or a weight, or has begun to remove the tenant
    keys: int
    webhooks: int
    files: int
    bulk_jobs: int
    unended_bulk_jobs: int
    requests: int
    unfinished_requests: int


def holdings(session: Session, tenant: str) -> TenantHoldings:
    """Returns what the database holds for a tenant."""
    return TenantHoldings(**session.execute(HELD, {"tenant": tenant}).one()._mapping)


def begin(session: Session, tenant: str) -> None:
    """Stops the tenant's bulk jobs, and stores a row of settings, by which it is listed until `end`."""
    tenant_limits.change_tenant(session, tenant, {})
    session.execute(
        text(f"""
            update bulk_jobs
            set status = 'cancelling', cancelling_at = clock_timestamp(), deleted_at = clock_timestamp()
            where tenant = :tenant and {UNENDED} and status <> 'cancelling'
        """),  # noqa: S608  # a constant
        {"tenant": tenant},
    )


def cancel_some(session: Session, tenant: str) -> int:
    """Cancels up to AT_ONCE requests: waiting ones end, running ones are marked for their workers; returns how many."""
    ids = session.scalars(
        text(f"""
            select id from requests where tenant = :tenant and {UNFINISHED} and cancel_requested_at is null limit :limit
        """),  # noqa: S608  # a constant
        {"tenant": tenant, "limit": AT_ONCE},
    ).all()
    return len(client_requests.cancel(session, tenant, ids)) if ids else 0


def delete_some(connection: Connection, tenant: str, table: str) -> int:
    """Deletes some of the tenant's rows of one of PARTS; returns how many."""
    which, limit = PARTS[table]
    return connection.execute(
        text(f"""
            delete from {table} where ctid = any(array(
                select ctid from {table} where {which} limit :limit for update skip locked
            ))
        """),  # noqa: S608  # constants
        {"tenant": tenant, "limit": limit},
    ).rowcount


def end(connection: Connection, tenant: str) -> None:
    """Deletes the tenant's settings; a tenant with its name is a new one from then on."""
    connection.execute(text("delete from tenants where name = :tenant"), {"tenant": tenant})

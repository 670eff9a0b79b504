"""A tenant's webhook endpoints: creates, lists and removes them, and rotates their secrets."""

import base64
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from models.connections.sql import text
from models.tenants.tenant_limits import check_alone
from models.webhooks.webhook_tables import WebhookEndpoint

EventType = Literal[  # OpenAI's names: the end of a background response, and of a batch
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "response.promise_at_risk",  # Magnus's own: an answer is expected later than promised
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)
MOST_COUNTED = 1000  # the most waiting deliveries that are counted for an endpoint; bounds the query. Not tuned.
MOST_ENDPOINTS = 20  # endpoints of a tenant: each end of a response writes a row for each endpoint. Not tuned.


@dataclass(frozen=True, slots=True)
class EndpointState:
    """An endpoint with the number of deliveries that wait for an attempt, counted up to MOST_COUNTED."""

    endpoint: WebhookEndpoint
    waiting: int


class TooManyEndpoints(Exception):
    """The tenant has MOST_ENDPOINTS endpoints already."""


def create(session: Session, tenant: str, url: str, events: Sequence[str]) -> WebhookEndpoint:
    """Stores an endpoint, which gets the events from now on; raises TooManyEndpoints."""
    check_alone(session, tenant, "webhook endpoints")
    if (session.scalar(select(func.count()).where(WebhookEndpoint.tenant == tenant)) or 0) >= MOST_ENDPOINTS:
        raise TooManyEndpoints(
            f"You have {MOST_ENDPOINTS} webhook endpoints already, the most that one tenant may have."
        )
    endpoint = WebhookEndpoint(
        id=f"we_{uuid.uuid4().hex}", tenant=tenant, url=url, events=sorted(set(events)), secret=new_secret()
    )
    session.add(endpoint)
    session.commit()
    return endpoint


def list_endpoints(session: Session, tenant: str) -> Sequence[WebhookEndpoint]:
    """Returns a tenant's endpoints, oldest first."""
    return session.scalars(
        select(WebhookEndpoint)
        .where(WebhookEndpoint.tenant == tenant)
        .order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)
    ).all()


def endpoint_states(session: Session, limit: int) -> list[EndpointState]:
    """Returns webhook endpoints of all tenants, the ones with the most failures first."""
    endpoints = session.scalars(
        select(WebhookEndpoint).order_by(WebhookEndpoint.failures.desc(), WebhookEndpoint.id).limit(limit)
    ).all()
    undelivered = session.execute(
        text("""
            select endpoint, (select count(*) from (
                select from webhook_deliveries where endpoint_id = endpoint and next_attempt_at is not null limit :most
            ) as waiting) as number from unnest(cast(:endpoints as text[])) as endpoint
        """),
        {"endpoints": [endpoint.id for endpoint in endpoints], "most": MOST_COUNTED},
    )
    numbers = {row.endpoint: row.number for row in undelivered}
    return [EndpointState(endpoint, numbers.get(endpoint.id, 0)) for endpoint in endpoints]


def rotate(session: Session, tenant: str, id: str, overlap_s: int) -> WebhookEndpoint | None:
    """Gives an endpoint a new secret; the old one also signs for `overlap_s`. Returns None without such an endpoint."""
    rotated = session.scalars(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.tenant == tenant, WebhookEndpoint.id == id)
        .values(
            secret=new_secret(),
            old_secret=WebhookEndpoint.secret,
            old_secret_until=func.clock_timestamp() + timedelta(seconds=overlap_s),
        )
        .returning(WebhookEndpoint),
        execution_options={"populate_existing": True, "synchronize_session": False},
    ).one_or_none()
    session.commit()
    return rotated


def remove(session: Session, tenant: str, id: str) -> bool:
    """Removes an endpoint and stops its deliveries; returns False if this tenant has no such endpoint."""
    removed = session.scalar(
        delete(WebhookEndpoint)
        .where(WebhookEndpoint.tenant == tenant, WebhookEndpoint.id == id)
        .returning(WebhookEndpoint.id)
        .execution_options(synchronize_session=False)
    )
    session.commit()
    return removed is not None


def new_secret() -> str:
    """Returns a secret of 256 random bits, in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()

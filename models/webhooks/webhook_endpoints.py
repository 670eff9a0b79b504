"""A tenant's webhook endpoints: make, list, rotate the secret, remove."""

import base64
import secrets
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, get_args

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from models.webhooks.webhook_tables import WebhookEndpoint

EventType = Literal[  # as OpenAI names them; the end of a background response, and of a batch
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)
MOST_ENDPOINTS = 20  # of a tenant: each end of a response writes a row for each. Not tuned.


class TooManyEndpoints(Exception):
    """The tenant has as many endpoints as it may."""

    def __init__(self) -> None:
        super().__init__(f"You have {MOST_ENDPOINTS} webhook endpoints already, the most that one tenant may have.")


def create(session: Session, tenant: str, url: str, events: Sequence[str]) -> WebhookEndpoint:
    """Store an endpoint, which gets the events that happen from now on; raises TooManyEndpoints."""
    if session.scalar(select(func.count()).where(WebhookEndpoint.tenant == tenant)) == MOST_ENDPOINTS:
        raise TooManyEndpoints
    endpoint = WebhookEndpoint(
        id=f"we_{uuid.uuid4().hex}", tenant=tenant, url=url, events=sorted(set(events)), secret=new_secret()
    )
    session.add(endpoint)
    session.commit()
    return endpoint


def list_of(session: Session, tenant: str) -> Sequence[WebhookEndpoint]:
    """A tenant's endpoints, oldest first."""
    return session.scalars(
        select(WebhookEndpoint)
        .where(WebhookEndpoint.tenant == tenant)
        .order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)
    ).all()


def rotate(session: Session, tenant: str, id: str, overlap_s: int) -> WebhookEndpoint | None:
    """Give an endpoint a new secret, beside which the old one signs for `overlap_s` more; None if there is none."""
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
    """Remove an endpoint; what was on its way to it is sent no more. False if this tenant has none of this id."""
    removed = session.scalar(
        delete(WebhookEndpoint)
        .where(WebhookEndpoint.tenant == tenant, WebhookEndpoint.id == id)
        .returning(WebhookEndpoint.id)
        .execution_options(synchronize_session=False)
    )
    session.commit()
    return removed is not None


def new_secret() -> str:
    """A secret as Standard Webhooks writes them, of 256 random bits."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()

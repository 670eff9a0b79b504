"""Bulk jobs, webhook endpoints and their deliveries of all tenants, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.bulk.bulk_tables import BulkJob
from models.sql import text
from models.webhooks.webhook_tables import WebhookDelivery, WebhookEndpoint

MOST_REDELIVERED = 1000  # of the newest deliveries, those that one action sends again; not tuned


@dataclass(frozen=True, slots=True)
class EndpointState:
    """An endpoint with its deliveries that are on their way, counted up to MOST_REDELIVERED."""

    endpoint: WebhookEndpoint
    waiting: int


def newest_bulk_jobs(session: Session, limit: int) -> Sequence[BulkJob]:
    """The newest bulk jobs of all tenants."""
    return session.scalars(select(BulkJob).order_by(BulkJob.created_at.desc(), BulkJob.id.desc()).limit(limit)).all()


def bulk_job(session: Session, id: str) -> BulkJob | None:
    """A bulk job of any tenant."""
    return session.get(BulkJob, id)


def endpoint_states(session: Session, limit: int) -> list[EndpointState]:
    """Webhook endpoints of all tenants, those that fail first."""
    endpoints = session.scalars(
        select(WebhookEndpoint).order_by(WebhookEndpoint.failures.desc(), WebhookEndpoint.id).limit(limit)
    ).all()
    waiting = session.execute(
        text("""
            select endpoint, (select count(*) from (
                select from webhook_deliveries where endpoint_id = endpoint and next_attempt_at is not null limit :most
            ) as waiting) as number from unnest(cast(:endpoints as text[])) as endpoint
        """),
        {"endpoints": [endpoint.id for endpoint in endpoints], "most": MOST_REDELIVERED},
    )
    numbers = {row.endpoint: row.number for row in waiting}
    return [EndpointState(endpoint, numbers.get(endpoint.id, 0)) for endpoint in endpoints]


def endpoint(session: Session, id: str) -> WebhookEndpoint | None:
    """A webhook endpoint of any tenant."""
    return session.get(WebhookEndpoint, id)


def deliveries(session: Session, endpoint_id: str, limit: int, before: int | None = None) -> Sequence[WebhookDelivery]:
    """An endpoint's deliveries, newest first, older than `before`."""
    listed = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
    if before is not None:
        listed = listed.where(WebhookDelivery.id < before)
    return session.scalars(listed.order_by(WebhookDelivery.id.desc()).limit(limit)).all()


def redeliver_given_up(session: Session, endpoint_id: str) -> int:
    """Send those of its newest MOST_REDELIVERED deliveries again that were given up; returns how many."""
    sent = session.execute(
        text("""
            update webhook_deliveries set next_attempt_at = clock_timestamp() where id = any(array(
                select id from (
                    select id, delivered_at, next_attempt_at from webhook_deliveries
                    where endpoint_id = :endpoint order by id desc limit :most
                ) as newest where delivered_at is null and next_attempt_at is null
            )) and delivered_at is null and next_attempt_at is null returning id
        """),
        {"endpoint": endpoint_id, "most": MOST_REDELIVERED},
    ).all()
    session.commit()
    return len(sent)

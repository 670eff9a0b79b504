"""Deliveries of events: a sender claims deliveries for some time; they then arrive, are tried again, or are given up.

The deliveries that a dead sender claimed are due again after that time. An event that is not given up is therefore
delivered at least once, and always under the same id.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import to_json
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from models.connections.sql import text
from models.webhooks.webhook_tables import WebhookDelivery, WebhookEndpoint

MOST_REDELIVERED = 1000  # one action looks for given-up deliveries among this many newest ones; not tuned


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """One attempt to deliver an event; instants are Unix times of the database's clock."""

    id: int
    endpoint_id: str
    event_id: str
    type: str
    object_id: str
    event_at: float
    attempts: int  # attempts to deliver the event, this one included
    url: str
    secret: str
    old_secret: str | None  # the endpoint's secret before the rotation, while events are signed with both
    now: float


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """How an attempt ended; `retry_in_s` is None if the event arrived."""

    id: int
    endpoint_id: str
    attempts: int
    status: int | None
    error: str | None
    retry_in_s: float | None


def claim(
    connection: Connection,
    most: int,
    running: Mapping[str, int],
    *,
    each: int,
    each_failing: int,
    each_tenant: int,
    claim_s: float,
) -> list[ClaimedDelivery]:
    """Claims up to `most` due deliveries for `claim_s` seconds; tenants take turns.

    Claims at most `each` of one endpoint, or `each_failing` if the endpoint's last attempt failed, and at most
    `each_tenant` of a tenant. The sender's `running` deliveries, by endpoint id, count against these limits, so that
    endpoints that do not answer take few of a sender's attempts.
    """
    rows = connection.execute(
        text("""
            with endpoint as (
                select e.id, tenant, coalesce(r.running, 0) as running,
                    case when failures > 0 then cast(:each_failing as int) else cast(:each as int) end as most,
                    sum(coalesce(r.running, 0)) over (partition by tenant) as running_of_tenant
                from webhook_endpoints e
                left join unnest(cast(:endpoints as text[]), cast(:running as int[])) as r (id, running) using (id)
            ), due as (
                select id from (
                    select d.id, running_of_tenant + row_number() over (partition by tenant order by random()) as turn
                    from endpoint e cross join lateral (
                        select id from webhook_deliveries
                        where endpoint_id = e.id and next_attempt_at <= statement_timestamp() order by next_attempt_at
                        limit greatest(0, e.most - e.running) for update skip locked
                    ) d
                ) as locked where turn <= :each_tenant order by turn, random() limit :most
            )
            update webhook_deliveries d set attempts = attempts + 1,
                next_attempt_at = clock_timestamp() + make_interval(secs => :claim_s)
            from due, webhook_endpoints e where d.id = due.id and e.id = d.endpoint_id
            returning d.id, d.endpoint_id, d.event_id, d.type, d.object_id,
                extract(epoch from d.event_at)::float8 as event_at, d.attempts, e.url, e.secret,
                case when e.old_secret_until > statement_timestamp() then e.old_secret end as old_secret,
                extract(epoch from statement_timestamp())::float8 as now
        """),
        {
            "endpoints": list(running),
            "running": list(running.values()),
            "each": each,
            "each_failing": each_failing,
            "each_tenant": each_tenant,
            "most": most,
            "claim_s": claim_s,
        },
    )
    return [ClaimedDelivery(**row._mapping) for row in rows]


def write_results(connection: Connection, results: Collection[DeliveryResult], give_up_after_s: float) -> None:
    """Writes how attempts ended; gives up events that are older than `give_up_after_s`.

    Ignores the result of an attempt after which another attempt has begun.
    """
    connection.execute(
        text("""
            with ended as (
                select * from json_to_recordset(cast(:results as json))
                    as r (id bigint, attempts int, status int, error text, retry_in_s float8)
            ), locked as (
                select d.id from webhook_deliveries d join ended r using (id, attempts) order by d.id for update of d
            )
            update webhook_deliveries d set last_status = r.status, last_error = r.error,
                delivered_at = case when r.retry_in_s is null then clock_timestamp() end,
                next_attempt_at = case
                    when event_at > clock_timestamp() - make_interval(secs => :give_up_after_s)
                    then clock_timestamp() + make_interval(secs => r.retry_in_s) end
            from ended r join locked using (id) where d.id = r.id
        """),
        {"results": to_json(list(results)).decode(), "give_up_after_s": give_up_after_s},
    )
    arrived = {result.endpoint_id: result.retry_in_s is None for result in sorted(results, key=lambda r: r.id)}
    connection.execute(
        text("""
            with last as (
                select e.id, l.arrived from webhook_endpoints e
                join unnest(cast(:ids as text[]), cast(:arrived as bool[])) as l (id, arrived) using (id)
                where e.failures > 0 or not l.arrived order by e.id for update of e
            )
            update webhook_endpoints e set failures = case when arrived then 0 else failures + 1 end
            from last where e.id = last.id
        """),
        {"ids": list(arrived), "arrived": list(arrived.values())},
    )


def page(
    session: Session, tenant: str, endpoint_id: str, *, limit: int, after: int | None = None
) -> Sequence[WebhookDelivery] | None:
    """Returns an endpoint's deliveries, newest first, older than `after`; None if this tenant has no such endpoint."""
    return newest_deliveries(session, endpoint_id, limit, after) if _is_of(session, tenant, endpoint_id) else None


def newest_deliveries(
    session: Session, endpoint_id: str, limit: int, before: int | None = None
) -> Sequence[WebhookDelivery]:
    """Returns the deliveries of an endpoint of any tenant, newest first, older than `before`."""
    deliveries = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
    if before is not None:
        deliveries = deliveries.where(WebhookDelivery.id < before)
    return session.scalars(deliveries.order_by(WebhookDelivery.id.desc()).limit(limit)).all()


def redeliver(session: Session, tenant: str, endpoint_id: str, id: int) -> WebhookDelivery | None:
    """Sends an event again now, under its id; returns None if this tenant has no such endpoint or delivery."""
    if not _is_of(session, tenant, endpoint_id):
        return None
    delivery: WebhookDelivery | None = session.scalar(
        select(WebhookDelivery)
        .from_statement(
            text("""
                update webhook_deliveries set next_attempt_at = clock_timestamp(), delivered_at = null
                where id = :id and endpoint_id = :endpoint_id returning *
            """)
        )
        .execution_options(populate_existing=True),
        {"id": id, "endpoint_id": endpoint_id},
    )
    session.commit()
    return delivery


def redeliver_given_up(session: Session, endpoint_id: str) -> None:
    """Sends the given-up deliveries among an endpoint's newest MOST_REDELIVERED again."""
    session.execute(
        text("""
            update webhook_deliveries set next_attempt_at = clock_timestamp() where id = any(array(
                select id from (
                    select id, delivered_at, next_attempt_at from webhook_deliveries
                    where endpoint_id = :endpoint order by id desc limit :most
                ) as newest where delivered_at is null and next_attempt_at is null
            )) and delivered_at is null and next_attempt_at is null
        """),
        {"endpoint": endpoint_id, "most": MOST_REDELIVERED},
    )
    session.commit()


def delete_old(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to `limit` deliveries whose event is older than `retention_s`; returns their number."""
    return connection.execute(
        text("""
            delete from webhook_deliveries where id in (
                select id from (select id, event_at from webhook_deliveries order by id limit :limit) as oldest
                where event_at < statement_timestamp() - make_interval(secs => :retention_s)
            )
        """),
        {"retention_s": retention_s, "limit": limit},
    ).rowcount


def _is_of(session: Session, tenant: str, endpoint_id: str) -> bool:
    found = select(WebhookEndpoint.id).where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant == tenant)
    return session.scalar(found) is not None

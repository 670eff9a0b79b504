"""The tables of webhooks: endpoints, and one row for each event that is sent to an endpoint."""

from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from models.connections.sql import text
from models.tables import NOW, Base


class WebhookEndpoint(Base):
    """An address to which a tenant wants events sent."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(primary_key=True)  # we_<32 hex digits>
    tenant: Mapped[str]
    url: Mapped[str]
    events: Mapped[list[str]] = mapped_column(ARRAY(Text))
    secret: Mapped[str]  # whsec_<base64>; stored readable, because signatures are made with it
    old_secret: Mapped[str | None]  # the secret before a rotation, which also signs until `old_secret_until`
    old_secret_until: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(server_default="0")  # failed attempts since the last successful one
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("webhook_endpoints_of_tenant", "tenant", "id"),)


class WebhookDelivery(Base):
    """An event for an endpoint, written in the transaction that ends its object; a trigger writes it for responses."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    endpoint_id: Mapped[str]  # no foreign key: with one, every ended response would lock the endpoint's row
    # evt_ and the digits of the object's id, because an object ends only once; it is sent as the header webhook-id
    event_id: Mapped[str]
    type: Mapped[str]
    object_id: Mapped[str]
    event_at: Mapped[datetime] = mapped_column(server_default=NOW)
    attempts: Mapped[int] = mapped_column(server_default="0")
    # when the delivery is tried next, or a sender's claim on it expires; null once it has arrived or was given up
    next_attempt_at: Mapped[datetime | None] = mapped_column(server_default=NOW)
    delivered_at: Mapped[datetime | None]
    last_status: Mapped[int | None]  # HTTP status
    last_error: Mapped[str | None]

    __table_args__ = (
        Index("webhook_deliveries_of_endpoint", "endpoint_id", "id"),
        Index(
            "webhook_deliveries_due",
            "endpoint_id",
            "next_attempt_at",
            postgresql_where=text("next_attempt_at is not null"),
        ),
    )

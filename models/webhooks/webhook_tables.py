"""The tables of webhooks: endpoints, and one row for each event and endpoint until it has arrived."""

from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from models.sql import text
from models.tables import NOW, Base


class WebhookEndpoint(Base):
    """An address to which a tenant wants events sent."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(primary_key=True)  # we_<32 hex digits>
    tenant: Mapped[str]
    url: Mapped[str]
    events: Mapped[list[str]] = mapped_column(ARRAY(Text))
    secret: Mapped[str]  # whsec_<base64>; a signature needs it, so it cannot be a digest
    old_secret: Mapped[str | None]  # after a rotation; signs beside the new one until the instant
    old_secret_until: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(server_default="0")  # in a row, until now
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("webhook_endpoints_of_tenant", "tenant", "id"),)


class WebhookDelivery(Base):
    """An event on its way to an endpoint. The end of a response writes it, in the same transaction, by a trigger."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    endpoint_id: Mapped[str]  # no foreign key: every ended response would lock the endpoint's row
    event_id: Mapped[str]  # evt_ and the digits of the object's id, since an object ends once; the header webhook-id
    type: Mapped[str]
    object_id: Mapped[str]
    event_at: Mapped[datetime] = mapped_column(server_default=NOW)
    attempts: Mapped[int] = mapped_column(server_default="0")
    # null: it has arrived, or was given up. A sender that claims it sets this to when another one may.
    next_attempt_at: Mapped[datetime | None] = mapped_column(server_default=NOW)
    delivered_at: Mapped[datetime | None]
    last_status: Mapped[int | None]  # of HTTP
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

"""tenants: scopes and expiry of keys, quotas, weights, usage; webhooks: endpoints, deliveries, the trigger"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

INSTANT = TIMESTAMP(timezone=True)
NOW = sa.text("clock_timestamp()")
# A trigger, because requests end in a dozen statements of several processes, which may be of an older version during an
# upgrade. A tenant without an endpoint costs one index look-up.
FUNCTION = """
    create function write_webhook_deliveries() returns trigger language plpgsql as $$
    begin
        if exists (select from webhook_endpoints where tenant = new.tenant) then
            insert into webhook_deliveries (endpoint_id, event_id, type, object_id)
            select id, 'evt_' || substr(new.id, 6), 'response.' || new.status, new.id from webhook_endpoints
            where tenant = new.tenant and 'response.' || new.status = any(events)
                and new.body->'background' = 'true'::jsonb;
        end if;
        return null;
    end $$
"""
TRIGGER = """
    create trigger requests_webhooks after update of finished_at on requests for each row
    when (old.finished_at is null and new.finished_at is not null) execute function write_webhook_deliveries()
"""


def upgrade() -> None:
    """Add tables and columns; existing keys keep their rights. No row of requests is rewritten."""
    op.add_column("api_keys", sa.Column("scopes", ARRAY(sa.Text()), server_default="{submit,read}", nullable=False))
    op.add_column("api_keys", sa.Column("expires_at", INSTANT, nullable=True))
    op.create_index("api_keys_of_tenant", "api_keys", ["tenant", "id"])
    op.create_table(
        "tenants",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("weight", sa.Float(), server_default="1", nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("queued_requests", sa.Integer(), nullable=True),
        sa.Column("queued_tokens", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
    )
    sums: list[tuple[str, sa.types.TypeEngine[Any]]] = [
        ("prompt_tokens", sa.BigInteger()),
        ("answer_tokens", sa.BigInteger()),
        ("gpu_s", sa.Float()),
    ]
    op.create_table(
        "usage_entries",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        *(sa.Column(name, kind, nullable=False) for name, kind in sums),
    )
    op.create_table(
        "usage_days",
        sa.Column("day", sa.Date(), primary_key=True),
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        *(sa.Column(name, kind, nullable=False) for name, kind in sums),
    )
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("old_secret", sa.Text(), nullable=True),
        sa.Column("old_secret_until", INSTANT, nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
    )
    op.create_index("webhook_endpoints_of_tenant", "webhook_endpoints", ["tenant", "id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=False),
        sa.Column("event_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_attempt_at", INSTANT, server_default=NOW, nullable=True),
        sa.Column("delivered_at", INSTANT, nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
    )
    op.create_index("webhook_deliveries_of_endpoint", "webhook_deliveries", ["endpoint_id", "id"])
    op.create_index(
        "webhook_deliveries_due",
        "webhook_deliveries",
        ["endpoint_id", "next_attempt_at"],
        postgresql_where=sa.text("next_attempt_at is not null"),
    )
    op.execute(FUNCTION)
    op.execute(TRIGGER)


def downgrade() -> None:
    """Take it away again, with the usage counted so far."""
    op.execute("drop trigger requests_webhooks on requests")
    op.execute("drop function write_webhook_deliveries")
    for table in ("webhook_deliveries", "webhook_endpoints", "usage_days", "usage_entries", "tenants"):
        op.drop_table(table)
    op.drop_index("api_keys_of_tenant", "api_keys")
    op.drop_column("api_keys", "expires_at")
    op.drop_column("api_keys", "scopes")

"""the tables before 1.0.0: what 35 earlier migrations made, in one; a database at 0038 is at the baseline already"""

from pathlib import Path

from alembic import op

revision = "0038"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables, by the SQL beside this file."""
    statements = Path(__file__).with_suffix(".sql").read_text()
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(statements)


def downgrade() -> None:
    """Drops what the baseline created, with all stored data."""
    op.execute("""
        drop table
            file_chunks, bulk_lines, workers, webhook_endpoints, webhook_deliveries, usage_entries, usage_days, tenants,
            service_state, samples, requests, rate_counts, process_heartbeats, operator_sessions, model_versions,
            minutes, leaderships, histogram_buckets, files, bulk_jobs, batches, audit_entries, api_keys
    """)
    op.execute("drop function write_webhook_deliveries")
    op.execute("drop sequence planner_epochs")

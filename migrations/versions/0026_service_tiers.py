"""service tiers: a tenant's quota of the tier `priority`, and usage by tier"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds them; what was used before counts as of the tier `default`.

    Until processes `chores` of an earlier release are restarted, they sum up no usage; its entries wait.
    """
    op.execute("alter table tenants add column priority_requests integer")
    op.execute("alter table usage_entries add column tier text not null default 'default'")
    op.execute("alter table usage_days add column tier text not null default 'default'")
    op.execute("alter table usage_days drop constraint usage_days_pkey, add primary key (day, tenant, model, tier)")
    op.execute(
        "create index requests_preferred on requests (tenant) "
        "where status in ('queued', 'in_progress') and priority > 500"
    )


def downgrade() -> None:
    """Takes them away again; a day's usage of a model has one row, of the sums over its tiers."""
    op.execute("drop index requests_preferred")
    op.execute("alter table usage_days drop constraint usage_days_pkey")
    op.execute("""
        with old as (delete from usage_days returning *)
        insert into usage_days (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s)
        select day, tenant, model, sum(requests), sum(prompt_tokens), sum(answer_tokens), sum(gpu_s)
        from old group by day, tenant, model
    """)
    op.execute("alter table usage_days drop column tier, add primary key (day, tenant, model)")
    op.execute("alter table usage_entries drop column tier")
    op.execute("alter table tenants drop column priority_requests")

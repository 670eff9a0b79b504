"""the tokens of a bulk job that are done and left, and what was forecast for it"""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns; unended jobs fill them when they are next counted."""
    op.execute(
        "alter table bulk_jobs add column done_tokens bigint not null default 0, add column left_work jsonb, "
        "add column forecast_s double precision"
    )
    op.execute("create index bulk_jobs_forecast on bulk_jobs (completed_at) where forecast_s is not null")


def downgrade() -> None:
    """Takes them away again."""
    op.execute("alter table bulk_jobs drop column done_tokens, drop column left_work, drop column forecast_s")

"""the tokens that workers have guessed, and those guesses that were right"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds both counters to the workers."""
    op.execute("""
        alter table workers add column guessed_tokens bigint not null default 0,
            add column right_guesses bigint not null default 0
    """)


def downgrade() -> None:
    """Takes them away again."""
    op.execute("alter table workers drop column guessed_tokens, drop column right_guesses")

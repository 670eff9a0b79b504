"""operators who sign in at an OpenID provider"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the person, the provider and the groups of a session."""
    op.execute("alter table operator_sessions add column person text")
    op.execute("alter table operator_sessions add column issuer text")
    op.execute("alter table operator_sessions add column person_groups text[]")


def downgrade() -> None:
    """Ends these sessions and takes the columns away again."""
    op.execute("delete from operator_sessions where person is not null")
    op.execute("alter table operator_sessions drop column person_groups")
    op.execute("alter table operator_sessions drop column issuer")
    op.execute("alter table operator_sessions drop column person")

"""a secret of the installation, by which its processes know each other's messages"""

from alembic import op

revision = "0015"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Draws the secret: two random UUIDs have 244 random bits."""
    op.execute("""
        update service_state set value = value
            || jsonb_build_object('secret', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''))
        where name = 'installation'
    """)


def downgrade() -> None:
    """Takes the secret away again."""
    op.execute("update service_state set value = value - 'secret' where name = 'installation'")

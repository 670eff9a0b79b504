"""release 1.1.0: equal requests are computed once"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

UNFED = """create index {name} on requests (planner_epoch)
    where status = 'queued' and predicted_tokens is not null {alone} and tier {tiers}"""
INDEXES = {"requests_unfed": "> 'flex'", "requests_unfed_background": "= 'flex'"}
GROUP = "on requests (tenant, twin_sha256, arrived_at, id) where"

# The first twin of a request that is deleted, by whatever process and release, is computed instead.
HAND_ON = """
    create function let_first_twin_lead() returns trigger language plpgsql as $$
    begin
        update requests set twin_of = null, planner_epoch = 0, shared = true where id = (
            select id from requests
            where tenant = old.tenant and twin_sha256 = old.twin_sha256 and status = 'queued' and twin_of is not null
            order by arrived_at, id limit 1 for update
        );
        return null;
    end $$;
    create trigger let_first_twin_lead after delete on requests
        for each row when (old.shared) execute function let_first_twin_lead();
"""


def upgrade() -> None:
    """Adds the columns and indexes of twins; requests that were stored before share no computation."""
    op.execute("""
        alter table requests add twin_sha256 bytea, add twin_of text, add shared boolean not null default false
    """)
    op.execute("drop index requests_unfed, requests_unfed_background")
    for name, tiers in INDEXES.items():
        op.execute(UNFED.format(name=name, alone="and twin_of is null", tiers=tiers))
    op.execute(f"""create index requests_leading {GROUP} status in ('queued', 'in_progress')
        and twin_sha256 is not null and twin_of is null""")
    op.execute(f"create index requests_following {GROUP} status = 'queued' and twin_of is not null")
    op.execute("create index requests_to_share on requests (finished_at) where shared and finished_at is not null")
    op.execute(HAND_ON)


def downgrade() -> None:
    """Drops what was added; requests that waited for equal ones are computed by themselves."""
    op.execute("drop trigger let_first_twin_lead on requests; drop function let_first_twin_lead")
    op.execute("drop index requests_unfed, requests_unfed_background")
    op.execute("update requests set planner_epoch = 0 where status = 'queued' and twin_of is not null")
    op.execute("alter table requests drop twin_sha256, drop twin_of, drop shared")
    for name, tiers in INDEXES.items():
        op.execute(UNFED.format(name=name, alone="", tiers=tiers))

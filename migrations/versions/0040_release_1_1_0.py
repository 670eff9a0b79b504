"""release 1.1.0: equal requests are computed once; promises of accepted quotes"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

UNFED = """create index {name} on requests (planner_epoch)
    where status = 'queued' and predicted_tokens is not null {alone} and tier {tiers}"""
INDEXES = {"requests_unfed": "> 'flex'", "requests_unfed_background": "= 'flex'"}
GROUP = "on requests (tenant, twin_sha256, arrived_at, id) where"


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
    add_promises()


def downgrade() -> None:
    """Drops what was added; requests that waited for equal ones are computed by themselves."""
    drop_promises()
    op.execute("drop index requests_unfed, requests_unfed_background")
    op.execute("update requests set planner_epoch = 0 where status = 'queued' and twin_of is not null")
    op.execute("alter table requests drop twin_sha256, drop twin_of, drop shared")
    for name, tiers in INDEXES.items():
        op.execute(UNFED.format(name=name, alone="", tiers=tiers))


def add_promises() -> None:
    """Makes the tables of promises, and the index by which lost batches are found."""
    op.execute("""
        create table promises (
            request_id text primary key, quote text not null unique, tenant text not null, tier text not null,
            probability float8, price float8, tokens float8, sold_at timestamptz not null default clock_timestamp(),
            promised_by timestamptz, look_at timestamptz, missed boolean not null default false,
            warned boolean not null default false
        )
    """)
    op.execute("create index promises_due on promises (look_at) where look_at is not null")
    op.execute("create index promises_of_tenant on promises (tenant, request_id)")
    op.execute("create index promises_by_time on promises (sold_at)")
    op.execute("""
        create table promise_hours (
            hour timestamptz, tenant text, tier text, probability float8, sold integer not null,
            kept integer not null, lost_worker integer not null, longer_answer integer not null,
            failed integer not null, later_arrivals integer not null, primary key (hour, tenant, tier, probability)
        )
    """)
    op.execute("create index batches_lost on batches (finished_at) where status = 'lost'")


def drop_promises() -> None:
    """Drops the promises, and what the book has of them."""
    op.execute("drop table promises, promise_hours")
    op.execute("drop index batches_lost")

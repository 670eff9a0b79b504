"""release 1.1.0: limits of tenants by the tokens that their requests generate; the tier off_peak"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# A trigger, because requests end in a dozen statements of several processes. Requests without a charge do not call it.
CHARGE = """create function charge_tokens() returns trigger language plpgsql as $$
declare
    tokens integer := new.charged_tokens;
begin
    if tg_op = 'UPDATE' then
        tokens := coalesce(new.output_tokens, cardinality(new.generated_ids)) - tokens;
    end if;
    if tokens <> 0 then
        insert into token_charges (tenant, at, tokens) values (new.tenant,
            case when tg_op = 'UPDATE' and tokens > 0 then clock_timestamp() else new.arrived_at end, tokens);
    end if;
    return null;
end $$"""


def upgrade() -> None:
    """Adds the limit, the charges against it, the trigger that writes them, and the tier."""
    op.execute("alter type service_tier add value if not exists 'off_peak' before 'flex'")
    index_background("<=")
    op.execute("alter table tenants add generated_tokens_per_minute bigint")
    op.execute("alter table requests add charged_tokens integer")
    op.execute("""
        create table token_charges (
            id bigserial primary key, tenant text not null, at timestamptz not null, tokens integer not null
        )
    """)
    op.execute("create index token_charges_of_tenant on token_charges (tenant, at)")
    op.execute(CHARGE)
    op.execute("""
        create trigger requests_charged after insert on requests for each row
            when (new.charged_tokens is not null) execute function charge_tokens()
    """)
    op.execute("""
        create trigger requests_settled after update of finished_at on requests for each row
            when (old.finished_at is null and new.finished_at is not null and new.charged_tokens is not null)
            execute function charge_tokens()
    """)


def downgrade() -> None:
    """Drops them again, except the tier's name, which Postgres cannot drop; no row has it any more."""
    for table, column in (("requests", "tier"), ("bulk_jobs", "service_tier")):
        op.execute(f"update {table} set {column} = 'flex' where {column} < 'flex'")  # noqa: S608  # constants
    index_background("=")
    op.execute("drop trigger requests_charged on requests")
    op.execute("drop trigger requests_settled on requests")
    op.execute("drop function charge_tokens")
    op.execute("drop table token_charges")
    op.execute("alter table requests drop charged_tokens")
    op.execute("alter table tenants drop generated_tokens_per_minute")


def index_background(tiers: str) -> None:
    """Makes the index of background work, whose `tiers` are those that compare so with `flex`."""
    op.execute("drop index requests_unfed_background")
    op.execute(f"""
        create index requests_unfed_background on requests (planner_epoch)
            where status = 'queued' and predicted_tokens is not null and tier {tiers} 'flex'
    """)

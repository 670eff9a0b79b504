"""release 1.1.0: limits of tenants by generated tokens; the tier off_peak; equal requests are computed once"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# A trigger, because requests end in a dozen statements of several processes. Requests without a charge do not call it.
# A twin generates nothing: it gets the answer of another request.
CHARGE = """create function charge_tokens() returns trigger language plpgsql as $$
declare
    ended boolean := new.finished_at is not null;
    tokens integer := case when not ended then new.charged_tokens when new.twin_of is not null then 0
        else coalesce(new.output_tokens, cardinality(new.generated_ids)) end - coalesce(old.charged_tokens, 0);
begin
    if tokens <> 0 then
        insert into token_charges (tenant, at, tokens) values (new.tenant,
            case when ended and tokens > 0 then clock_timestamp() else new.arrived_at end, tokens);
    end if;
    return null;
end $$"""
CHARGED = """create trigger requests_charged after insert on requests for each row
    when (new.charged_tokens is not null) execute function charge_tokens()"""
CHARGED_AGAIN = """create trigger requests_charged_again after update of charged_tokens, finished_at on requests
    for each row when (old.finished_at is null and new.charged_tokens is not null) execute function charge_tokens()"""
UNFED = """create index {name} on requests (planner_epoch)
    where status = 'queued' and predicted_tokens is not null {alone} and tier {tiers} 'flex'"""
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
    """Adds the tier, the limit with its charges and triggers, and twins' columns and indexes."""
    op.execute("alter type service_tier add value if not exists 'off_peak' before 'flex'")
    op.execute("""
        alter table requests add charged_tokens integer, add charge_assumed boolean not null default false,
            add twin_sha256 bytea, add twin_of text, add shared boolean not null default false
    """)
    index_waiting("and twin_of is null", {"requests_unfed": ">", "requests_unfed_background": "<="})
    op.execute(f"""create index requests_leading {GROUP} status in ('queued', 'in_progress')
        and twin_sha256 is not null and twin_of is null""")
    op.execute(f"create index requests_following {GROUP} status = 'queued' and twin_of is not null")
    op.execute("create index requests_to_share on requests (finished_at) where shared and finished_at is not null")
    op.execute(HAND_ON)
    op.execute("alter table tenants add generated_tokens_per_minute bigint")
    op.execute("""
        create table token_charges (
            id bigserial primary key, tenant text not null, at timestamptz not null, tokens integer not null
        )
    """)
    op.execute("create index token_charges_of_tenant on token_charges (tenant, at)")
    op.execute(CHARGE)
    op.execute(CHARGED)
    op.execute(CHARGED_AGAIN)


def downgrade() -> None:
    """Drops them again, except the tier's name, which Postgres cannot drop; twins that wait are computed each."""
    op.execute("drop trigger let_first_twin_lead on requests; drop function let_first_twin_lead")
    for table, column in (("requests", "tier"), ("bulk_jobs", "service_tier")):
        op.execute(f"update {table} set {column} = 'flex' where {column} < 'flex'")  # noqa: S608  # constants
    op.execute("update requests set planner_epoch = 0 where status = 'queued' and twin_of is not null")
    op.execute("drop trigger requests_charged on requests")
    op.execute("drop trigger requests_charged_again on requests")
    op.execute("drop function charge_tokens")
    op.execute("drop table token_charges")
    op.execute("drop index requests_leading, requests_following, requests_to_share")
    index_waiting("", {"requests_unfed": ">", "requests_unfed_background": "="})
    op.execute(
        "alter table requests drop charged_tokens, drop charge_assumed, drop twin_sha256, drop twin_of, drop shared"
    )
    op.execute("alter table tenants drop generated_tokens_per_minute")


def index_waiting(alone: str, indexes: dict[str, str]) -> None:
    """Makes the indexes of waiting work anew, by how their tiers compare with `flex`."""
    for name, tiers in indexes.items():
        op.execute(f"drop index {name}")
        op.execute(UNFED.format(name=name, alone=alone, tiers=tiers))

"""release 1.1.0: limits by expected work, budgets, promises of accepted quotes, tier off_peak, twins"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# A trigger, because requests end in a dozen statements of several processes. Requests without a charge do not call it.
# A twin generates nothing: it gets the answer of another request.
CHARGE = """create function charge_work() returns trigger language plpgsql as $$
declare
    ended boolean := new.finished_at is not null;
    tokens float8 := case when not ended then (new.charge->>'tokens')::float8 when new.twin_of is not null then 0
        else coalesce(new.output_tokens, cardinality(new.generated_ids)) end;
    gpu_s float8 := case when ended then (new.charge->>'gpu_s')::float8
        else tokens * (new.charge->>'token_gpu_s')::float8 end;
    before float8 := coalesce((old.charge->>'tokens')::float8, 0);
begin
    insert into work_charges (tenant, at, unit, amount)
    select new.tenant, case when ended and amount > 0 then clock_timestamp() else new.arrived_at end, unit, amount
    from (values ('tokens', tokens - before),
        ('gpu_s', coalesce(gpu_s, 0) - before * coalesce((old.charge->>'token_gpu_s')::float8, 0))
    ) as counted (unit, amount) where amount <> 0;
    return null;
end $$"""
CHARGED = """create trigger requests_charged after insert on requests for each row
    when (new.charge is not null) execute function charge_work()"""
CHARGED_AGAIN = """create trigger requests_charged_again after update of charge, finished_at on requests for each row
    when (old.finished_at is null and new.charge is not null) execute function charge_work()"""
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

# A trigger, because chores of 1.0.0 sum usage up by day until they are restarted. Beside one of ours they may deadlock,
# and fold again at their next turn.
MONTHS = """
    create function add_to_month() returns trigger language plpgsql as $$
    begin
        insert into usage_months as sums (tenant, month, tier, gpu_s)
        values (new.tenant, date_trunc('month', new.day::timestamp), new.tier, new.gpu_s - coalesce(old.gpu_s, 0))
        on conflict (tenant, month, tier) do update set gpu_s = sums.gpu_s + excluded.gpu_s;
        return null;
    end $$;
    create trigger add_to_month after insert or update of gpu_s on usage_days
        for each row execute function add_to_month();
"""


def upgrade() -> None:
    """Adds the tier, the limit with its charges and triggers, and twins' columns and indexes."""
    op.execute("alter type service_tier add value if not exists 'off_peak' before 'flex'")
    op.execute("""
        alter table requests add charge jsonb,
            add twin_sha256 bytea, add twin_of text, add shared boolean not null default false
    """)
    index_waiting("and twin_of is null", {"requests_unfed": ">", "requests_unfed_background": "<="})
    op.execute(f"""create index requests_leading {GROUP} status in ('queued', 'in_progress')
        and twin_sha256 is not null and twin_of is null""")
    op.execute(f"create index requests_following {GROUP} status = 'queued' and twin_of is not null")
    op.execute("create index requests_to_share on requests (finished_at) where shared and finished_at is not null")
    op.execute(HAND_ON)
    op.execute("""
        alter table tenants add generated_tokens_per_minute bigint, add gpu_seconds_per_minute integer, add budget jsonb
    """)
    op.execute("alter table usage_entries add job_id text")
    op.execute("create index usage_days_of_tenant on usage_days (tenant, day)")
    op.execute("""
        create table usage_months as select tenant, date_trunc('month', day::timestamp)::date as month, tier,
            sum(gpu_s) as gpu_s from usage_days group by 1, 2, 3
    """)
    op.execute("alter table usage_months add primary key (tenant, month, tier), alter gpu_s set not null")
    op.execute(MONTHS)
    op.execute("alter table bulk_jobs add gpu_s float8 not null default 0, add expected_gpu_s float8, add budget jsonb")
    op.execute("""
        create table work_charges (
            id bigserial primary key, tenant text not null, at timestamptz not null, unit text not null,
            amount double precision not null
        )
    """)
    op.execute("create index work_charges_of_tenant on work_charges (tenant, at)")
    op.execute(CHARGE)
    op.execute(CHARGED)
    op.execute(CHARGED_AGAIN)
    add_promises()


def downgrade() -> None:
    """Drops them again, except the tier's name, which Postgres cannot drop; twins that wait are computed each."""
    drop_promises()
    op.execute("drop trigger let_first_twin_lead on requests; drop function let_first_twin_lead")
    for table, column in (("requests", "tier"), ("bulk_jobs", "service_tier")):
        op.execute(f"update {table} set {column} = 'flex' where {column} < 'flex'")  # noqa: S608  # constants
    op.execute("update requests set planner_epoch = 0 where status = 'queued' and twin_of is not null")
    op.execute("drop trigger requests_charged on requests")
    op.execute("drop trigger requests_charged_again on requests")
    op.execute("drop function charge_work")
    op.execute("drop table work_charges")
    op.execute("drop index requests_leading, requests_following, requests_to_share")
    index_waiting("", {"requests_unfed": ">", "requests_unfed_background": "="})
    op.execute("alter table requests drop charge, drop twin_sha256, drop twin_of, drop shared")
    op.execute("alter table tenants drop generated_tokens_per_minute, drop gpu_seconds_per_minute, drop budget")
    op.execute("drop trigger add_to_month on usage_days; drop function add_to_month; drop table usage_months")
    op.execute("alter table usage_entries drop job_id; drop index usage_days_of_tenant")
    op.execute("alter table bulk_jobs drop gpu_s, drop expected_gpu_s, drop budget")


def index_waiting(alone: str, indexes: dict[str, str]) -> None:
    """Makes the indexes of waiting work anew, by how their tiers compare with `flex`."""
    for name, tiers in indexes.items():
        op.execute(f"drop index {name}")
        op.execute(UNFED.format(name=name, alone=alone, tiers=tiers))


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
            hour timestamptz, tenant text, model text, tier text, probability float8,
            sold int not null, kept int not null, lost_worker int not null, longer_answer int not null,
            failed int not null, later_arrivals int not null, primary key (hour, tenant, model, tier, probability)
        )
    """)
    op.execute("create index batches_lost on batches (finished_at) where status = 'lost'")


def drop_promises() -> None:
    """Drops the promises, and what the book has of them."""
    op.execute("drop table promises, promise_hours")
    op.execute("drop index batches_lost")

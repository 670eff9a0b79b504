"""release 1.0.0: kind, tier and ETA of a request; what a worker registers and reports as one value each"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

# One statement changes all types and values, so that Postgres writes the table only once and leaves no dead rows.
REQUESTS = """
    alter table requests
        alter kind type text using case when limit_tokens > 1 or not body ? 'pooling' then 'answer'
            when body->'pooling'->>'task' = 'score' then 'scores' else 'vectors' end,
        alter tier type service_tier using case when priority < -500 then 'flex' when priority > 500 then 'priority'
            else 'default' end::service_tier,
        alter body type jsonb using case
            when status not in ('completed', 'incomplete') and jsonb_typeof(body->'sampling') = 'object'
            then body || jsonb_build_object('sampling', jsonb_strip_nulls(jsonb_build_object('ignore_eos',
                body->'ignore_eos', 'min_tokens', body->'min_tokens', 'stop_token_ids', body->'stop_token_ids')
                || (body->'sampling')))
            else body end,
        alter priority type integer using priority - case when priority < -500 then -1000 when priority > 500 then 1000
            else 0 end,
        alter eta type jsonb using case when eta_at is not null then jsonb_build_object('forecast_s', forecast_s,
            'eta_s', extract(epoch from eta_at - arrived_at), 'low_s', extract(epoch from eta_low_at - arrived_at),
            'high_s', extract(epoch from eta_high_at - arrived_at)) end
"""
# The `KvMemory` of the worker `w`, and the tokens of the longest row that fits it.
MEMORY = """jsonb_build_object('theta_bytes', w.theta_bytes, 'delta_bytes', w.delta_bytes, 'paged', w.paged,
    'block_tokens', w.block_tokens, 'windowed_bytes', w.windowed_bytes, 'window_tokens', w.window_tokens)"""
LONGEST_ROW = """greatest(w.theta_bytes / w.delta_bytes, least(2147483647, case
    when w.windowed_bytes < w.delta_bytes
        then (w.theta_bytes - w.window_tokens * w.windowed_bytes) / (w.delta_bytes - w.windowed_bytes)
    when w.theta_bytes >= w.window_tokens * w.windowed_bytes then 2147483647 else 0 end))"""
# Converts stored curves to `ProfiledCurves` and `LearnedCurves`, and back; workers measure those of other kinds again.
CURVES = "jsonb_build_object('prefill', {0}->'prefill', 'decode', {0}->'decode')"
PROFILED = f"""case when w.curves->>'kind' in ('profile', 'quick_profile')
    then jsonb_build_object('curves', {CURVES.format("w.curves")}, 'quick', w.curves->>'kind' = 'quick_profile') end"""
LEARNED = f"""case when w.curves->>'kind' = 'learned'
    then w.curves - '{{kind,prefill,decode}}'::text[] || jsonb_build_object('curves', {CURVES.format("w.curves")})
    end"""
LOADABLE = f"""coalesce((select jsonb_object_agg(key, jsonb_build_object('change_s', value->'change_s',
        'memory', value - '{{change_s,curves}}'::text[], 'costs', {CURVES.format("value->'curves'")}))
    from jsonb_each(w.loadable)), '{{}}')"""  # noqa: S608  # constants
STORED_CURVES = """case
    when jsonb_typeof({0}->'curves'->'version') is not null then
        jsonb_build_object('kind', 'learned') || ({0}->'curves') - 'curves' || ({0}->'curves'->'curves')
    when jsonb_typeof({0}->'curves'->'curves') is not null then
        jsonb_build_object('kind', case when ({0}->'curves'->>'quick')::bool then 'quick_profile' else 'profile' end)
        || ({0}->'curves'->'curves') end"""
STORED_LOADABLE = """coalesce((select jsonb_object_agg(key, value->'memory' || jsonb_build_object(
        'change_s', value->'change_s', 'curves', jsonb_build_object('kind', 'profile') || (value->'costs')))
    from jsonb_each(w.facts->'loadable')), '{}')"""


# A body is stored without fields that have their default, and the default of `background` is true.
WEBHOOKS = """create or replace function write_webhook_deliveries() returns trigger language plpgsql as $$
begin
    if exists (select from webhook_endpoints where tenant = new.tenant) then
        insert into webhook_deliveries (endpoint_id, event_id, type, object_id)
        select id, 'evt_' || substr(new.id, 6), 'response.' || new.status, new.id from webhook_endpoints
        where tenant = new.tenant and 'response.' || new.status = any(events)
            and {background} = 'true'::jsonb;
    end if;
    return null;
end $$;"""


def upgrade() -> None:
    """Changes the tables of requests and workers, and the trigger that writes webhook deliveries."""
    upgrade_requests()
    upgrade_workers()
    op.execute(WEBHOOKS.format(background="coalesce(new.body->'background', 'true')"))


def downgrade() -> None:
    """Changes the tables and the trigger back."""
    downgrade_workers()
    downgrade_requests()
    op.execute(WEBHOOKS.format(background="new.body->'background'"))


def upgrade_requests() -> None:
    """Makes columns of a request's kind and tier, and one value each of its ETA at submission and its sampling."""
    op.execute("create type service_tier as enum ('flex', 'default', 'priority')")
    op.execute("drop index requests_unpredicted, requests_preferred, requests_unfed")
    op.execute("""
        alter table requests add kind text not null default 'answer', add eta jsonb, add generated_by text,
            add tier service_tier not null default 'default', add predicting_until timestamptz,
            add stop_string text
    """)
    op.execute(REQUESTS)
    op.execute("alter table requests drop eta_at, drop eta_low_at, drop eta_high_at, drop forecast_s")
    op.execute("""
        create index requests_unpredicted on requests (tenant, tier desc, priority desc, arrived_at)
            where status = 'queued' and predicted_tokens is null
    """)
    op.execute("""
        create index requests_preferred on requests (tenant)
            where status in ('queued', 'in_progress') and tier = 'priority'
    """)
    for name, tiers in (("requests_unfed", "> 'flex'"), ("requests_unfed_background", "= 'flex'")):
        op.execute(f"""
            create index {name} on requests (planner_epoch)
                where status = 'queued' and predicted_tokens is not null and tier {tiers}
        """)
    op.execute("""
        alter table bulk_jobs alter service_tier drop default,
            alter service_tier type service_tier using service_tier::service_tier, add usage jsonb,
            add deleted_at timestamptz
    """)
    op.execute("alter table bulk_jobs alter service_tier set default 'flex'")


def upgrade_workers() -> None:
    """Adds the values `facts` and `report`, fills them from the columns of single figures, and drops these columns."""
    op.execute("alter table workers add column facts jsonb, add column report jsonb not null default '{}'")
    op.execute("alter table workers add column longest_row_tokens bigint")
    op.execute(f"""
        update workers w set longest_row_tokens = {LONGEST_ROW},
            facts = jsonb_build_object('name', w.name, 'model', w.model, 'device', w.device, 'memory', {MEMORY},
                'curves', {PROFILED}, 'lacks', to_jsonb(w.lacks), 'adapters', to_jsonb(w.adapters),
                'prefix_cache', w.prefix_cache, 'loadable', {LOADABLE}, 'model_changes', w.model_changes,
                'version', w.version, 'instance', w.instance),
            report = jsonb_build_object('max_rows', w.max_rows, 'fault', w.fault, 'curves', {LEARNED},
                'row_lengths', w.row_lengths, 'shared_tokens', w.shared_tokens, 'guessed_tokens', w.guessed_tokens,
                'right_guesses', w.right_guesses)
    """)  # noqa: S608  # constants
    op.execute("""
        alter table workers alter column facts set not null, alter column longest_row_tokens set not null,
            drop column device, drop column theta_bytes, drop column delta_bytes, drop column windowed_bytes,
            drop column window_tokens, drop column curves, drop column paged, drop column block_tokens,
            drop column lacks, drop column adapters, drop column prefix_cache, drop column max_rows,
            drop column fault, drop column row_lengths, drop column shared_tokens, drop column guessed_tokens,
            drop column right_guesses, drop column version, drop column loadable, drop column model_changes
    """)


def downgrade_requests() -> None:
    """Codes a request's kind into its body and its tier into its priority again; restores the columns of its ETA."""
    op.execute("""
        alter table bulk_jobs alter service_tier drop default, alter service_tier type text, drop usage, drop deleted_at
    """)
    op.execute("alter table bulk_jobs alter service_tier set default 'flex'")
    op.execute("drop index requests_unpredicted, requests_preferred, requests_unfed, requests_unfed_background")
    op.execute("""
        alter table requests add eta_at timestamptz, add eta_low_at timestamptz, add eta_high_at timestamptz,
            add forecast_s float8
    """)
    op.execute("""
        update requests set eta_at = arrived_at + make_interval(secs => (eta->>'eta_s')::float8),
            eta_low_at = arrived_at + make_interval(secs => (eta->>'low_s')::float8),
            eta_high_at = arrived_at + make_interval(secs => (eta->>'high_s')::float8),
            forecast_s = (eta->>'forecast_s')::float8,
            priority = priority + case tier when 'flex' then -1000 when 'priority' then 1000 else 0 end,
            body = case kind when 'answer' then body || coalesce(body->'sampling', '{}')
                else jsonb_set(body, '{pooling,task}', case kind when 'scores' then '"score"' else '"embed"' end::jsonb)
                end
        where eta is not null or tier <> 'default' or kind <> 'answer' or status not in ('completed', 'incomplete')
    """)
    op.execute("""
        alter table requests drop kind, drop tier, drop eta, drop generated_by, drop predicting_until, drop stop_string
    """)
    op.execute("drop type service_tier")
    op.execute("""
        create index requests_unpredicted on requests (priority desc, arrived_at)
            where status = 'queued' and predicted_tokens is null
    """)
    op.execute("""
        create index requests_preferred on requests (tenant)
            where status in ('queued', 'in_progress') and priority > 500
    """)
    op.execute("create index requests_unfed on requests (planner_epoch) where status = 'queued'")


def downgrade_workers() -> None:
    """Restores the columns of single figures, filled from `facts` and `report`."""
    op.execute("""
        alter table workers add column device text, add column theta_bytes bigint, add column delta_bytes bigint,
            add column windowed_bytes bigint not null default 0, add column window_tokens bigint not null default 0,
            add column curves jsonb, add column paged boolean not null default false,
            add column block_tokens integer not null default 1, add column lacks text[] not null default '{}',
            add column adapters text[] not null default '{}', add column prefix_cache boolean not null default false,
            add column max_rows integer, add column fault text, add column row_lengths jsonb not null default '{}',
            add column shared_tokens bigint not null default 0, add column guessed_tokens bigint not null default 0,
            add column right_guesses bigint not null default 0, add column version text,
            add column loadable jsonb not null default '{}', add column model_changes integer not null default 0
    """)
    op.execute(f"""
        update workers w set device = w.facts->>'device',
            theta_bytes = (w.facts->'memory'->>'theta_bytes')::bigint,
            delta_bytes = (w.facts->'memory'->>'delta_bytes')::bigint,
            windowed_bytes = coalesce((w.facts->'memory'->>'windowed_bytes')::bigint, 0),
            window_tokens = coalesce((w.facts->'memory'->>'window_tokens')::bigint, 0),
            paged = coalesce((w.facts->'memory'->>'paged')::bool, false),
            block_tokens = coalesce((w.facts->'memory'->>'block_tokens')::int, 1),
            curves = coalesce({STORED_CURVES.format("w.report")}, {STORED_CURVES.format("w.facts")}),
            lacks = array(select jsonb_array_elements_text(w.facts->'lacks')),
            adapters = array(select jsonb_array_elements_text(w.facts->'adapters')),
            prefix_cache = coalesce((w.facts->>'prefix_cache')::bool, false),
            max_rows = coalesce((w.report->>'max_rows')::int, (w.facts->'memory'->>'max_rows')::int),
            fault = w.report->>'fault', row_lengths = coalesce(w.report->'row_lengths', '{{}}'),
            shared_tokens = coalesce((w.report->>'shared_tokens')::bigint, 0),
            guessed_tokens = coalesce((w.report->>'guessed_tokens')::bigint, 0),
            right_guesses = coalesce((w.report->>'right_guesses')::bigint, 0),
            version = w.facts->>'version', loadable = {STORED_LOADABLE},
            model_changes = coalesce((w.facts->>'model_changes')::int, 0)
    """)  # noqa: S608  # constants
    op.execute("""
        alter table workers alter column device set not null, alter column theta_bytes set not null,
            alter column delta_bytes set not null, drop column facts, drop column report, drop column longest_row_tokens
    """)

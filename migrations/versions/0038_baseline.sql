-- The schema of all versions before 1.0.0, as their last revision left it.
-- A planner draws the next epoch when it becomes the leader and when the policy changes.
create sequence planner_epochs;

create table api_keys (
    id serial primary key,
    name text not null,
    tenant text not null,
    prefix text not null,
    sha256 bytea not null,
    scopes text[] default '{submit,read}' not null,
    created_at timestamptz default clock_timestamp() not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    unique (sha256)
);
create index api_keys_of_tenant on api_keys (tenant, id);

create table audit_entries (
    id bigserial primary key,
    at timestamptz default clock_timestamp() not null,
    actor text not null,
    action text not null,
    target text not null,
    details jsonb not null
);
create index audit_entries_by_time on audit_entries (at);

create table batches (
    id bigserial primary key,
    worker text not null,
    model text,
    policy text not null,
    status varchar(16) default 'assigned' not null,
    joins boolean default false not null,
    sealed boolean default false not null,
    preempts text[] default '{}' not null,
    size integer not null,
    length integer not null,
    predicted_generation_length integer not null,
    iteration_limit integer,
    most_rows integer,
    estimated_s double precision not null,
    assigned_at timestamptz default clock_timestamp() not null,
    sent_at timestamptz,
    sends integer default 1 not null,
    fence integer default 0 not null,
    lease_until timestamptz,
    progress_tokens integer default 0 not null,
    started_at timestamptz,
    finished_at timestamptz,
    serving_s double precision,
    iterations integer,
    generation_length integer,
    valid_tokens integer,
    pad_tokens integer,
    invalid_tokens integer,
    peak_kv_bytes bigint
);
create index batches_by_time on batches using gist (tstzrange(started_at, greatest(started_at, finished_at), '[]'))
    where started_at is not null and finished_at is not null;
create index batches_finished on batches (finished_at) where finished_at is not null;
create index batches_open on batches (worker) where status in ('assigned', 'running');
create index batches_out_of_memory on batches (finished_at)
    where status = 'out_of_memory' and finished_at is not null;
create index batches_run_to_completion on batches (finished_at)
    where status = 'finished' and not joins and serving_s > 0 and generation_length > 0;

create table bulk_jobs (
    id text primary key,
    tenant text not null,
    idempotency_key text,
    idempotency_sha256 bytea,
    endpoint text not null,
    input_file_id text not null,
    parent_id text,
    completion_window text not null,
    metadata jsonb,
    status varchar(16) default 'validating' not null,
    lines integer not null,
    last_line integer not null,
    next_line integer default 1 not null,
    queued integer default 0 not null,
    completed integer default 0 not null,
    failed integer default 0 not null,
    errors jsonb,
    done_tokens bigint default 0 not null,
    left_work jsonb,
    forecast_s double precision,
    output_file_id text,
    error_file_id text,
    output_expires_s integer,
    created_at timestamptz default clock_timestamp() not null,
    expires_at timestamptz not null,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    expired_at timestamptz,
    cancelling_at timestamptz,
    cancelled_at timestamptz,
    paused_at timestamptz,
    service_tier text default 'flex' not null,
    untold boolean default false not null,
    fed_at timestamptz default clock_timestamp() not null,
    step_lines smallint default 500 not null,
    tries smallint default 0 not null,
    look_at timestamptz default clock_timestamp() not null
);
create index bulk_jobs_by_tenant on bulk_jobs (tenant, created_at, id);
create index bulk_jobs_forecast on bulk_jobs (completed_at) where forecast_s is not null;
create unique index bulk_jobs_idempotency on bulk_jobs (tenant, idempotency_key)
    where idempotency_key is not null;
create index bulk_jobs_of_file on bulk_jobs (input_file_id)
    where status in ('validating', 'in_progress', 'finalizing', 'cancelling');
create index bulk_jobs_unended on bulk_jobs (look_at)
    where status in ('validating', 'in_progress', 'finalizing', 'cancelling');

create table files (
    id text primary key,
    tenant text not null,
    purpose varchar(16) not null,
    filename text not null,
    job_id text,
    bytes bigint,
    lines integer default 0 not null,
    last_line integer default 0 not null,
    created_at timestamptz default clock_timestamp() not null,
    expires_at timestamptz,
    deleted_at timestamptz
);
create index files_by_tenant on files (tenant, created_at, id) where deleted_at is null;
create index files_deleted on files (deleted_at) where deleted_at is not null;
create index files_expiring on files (expires_at) where expires_at is not null;
create index files_in_upload on files (created_at) where bytes is null;

create table histogram_buckets (
    name text not null,
    model text not null,
    tenant_class text not null,
    tier text not null,
    bucket integer not null,
    requests bigint not null,
    total double precision not null,
    primary key (name, model, tenant_class, tier, bucket)
);

create table leaderships (
    name text primary key,
    holder text not null,
    fence bigint not null,
    expires_at timestamptz not null
);

create table minutes (
    minute timestamptz primary key,
    arrived integer not null,
    completed integer not null,
    incomplete integer not null,
    failed integer not null,
    cancelled integer not null,
    response_p50_s double precision,
    response_p95_s double precision,
    response_max_s double precision,
    batches integer not null,
    batched integer not null,
    valid_tokens bigint not null,
    pad_tokens bigint not null,
    invalid_tokens bigint not null,
    backlog integer,
    in_flight integer,
    oldest_s double precision,
    answer_tokens bigint,
    response_p99_s double precision,
    predicted integer,
    squared_error double precision,
    covered integer,
    tau double precision,
    promised integer,
    eta_error_s double precision,
    eta_kept integer,
    estimated integer,
    estimate_error_s double precision,
    served_s double precision
);

create table model_versions (
    id serial primary key,
    kind text not null,
    version text not null,
    active boolean default false not null,
    sha256 bytea not null,
    stored bytea not null,
    scores jsonb not null,
    data jsonb not null,
    created_at timestamptz default clock_timestamp() not null,
    unreadable text,
    unique (version)
);
create unique index model_versions_active on model_versions (kind) where active;

create table operator_sessions (
    sha256 bytea primary key,
    key_id integer,
    password_sha256 bytea,
    person text,
    issuer text,
    person_groups text[],
    created_at timestamptz default clock_timestamp() not null,
    expires_at timestamptz not null
);

create table process_heartbeats (
    kind text not null,
    instance text not null,
    started_at timestamptz default clock_timestamp() not null,
    heartbeat_at timestamptz default clock_timestamp() not null,
    clock_ahead_s double precision not null,
    failure text,
    primary key (kind, instance)
);

create unlogged table rate_counts (
    key_id integer primary key,
    window_start timestamptz not null,
    requests integer not null
);

create table requests (
    id text primary key,
    tenant text not null,
    idempotency_key text,
    idempotency_sha256 bytea,
    model text not null,
    base text,
    application text not null,
    instructions text not null,
    input text not null,
    body jsonb not null,
    prompt_tokens integer not null,
    input_tokens integer not null,
    limit_tokens integer not null,
    priority integer default 0 not null,
    deadline_at timestamptz,
    needs text[] default '{}' not null,
    job_id text,
    held boolean default false not null,
    status varchar(16) default 'queued' not null,
    arrived_at timestamptz default clock_timestamp() not null,
    predicted_tokens integer,
    predicted_upper_tokens integer,
    predictor_version text,
    planner_epoch bigint default 0 not null,
    eta_at timestamptz,
    eta_low_at timestamptz,
    eta_high_at timestamptz,
    forecast_s double precision,
    batch_id bigint,
    sealed_group text,
    suspect_group text,
    suspected integer default 0 not null,
    outgrew_tokens bigint default 0 not null,
    attempts integer default 0 not null,
    cancel_requested_at timestamptz,
    generated_ids integer[] default '{}' not null,
    logprobs jsonb,
    output_text text,
    output_tokens integer,
    cached_tokens integer,
    reasoning_tokens integer,
    finish_reason text,
    error jsonb,
    started_at timestamptz,
    first_token_at timestamptz,
    finished_at timestamptz,
    constraint finished_iff_final check ((status in ('queued', 'in_progress')) = (finished_at is null))
);
create index requests_answered on requests (finished_at) where status in ('completed', 'incomplete');
create index requests_answered_without_batch on requests (finished_at)
    where batch_id is null and status in ('completed', 'incomplete');
create index requests_by_application on requests (tenant, application, status, arrived_at, id);
create index requests_by_status on requests (tenant, status, arrived_at, id);
create index requests_deadlines on requests (deadline_at) where status = 'queued' and deadline_at is not null;
create index requests_held on requests (planner_epoch) where status = 'queued' and held;
create unique index requests_idempotency on requests (tenant, idempotency_key)
    where idempotency_key is not null;
create index requests_of_all_tenants on requests (status, arrived_at, id);
create index requests_of_all_tenants_by_application on requests (application, status, arrived_at, id);
create index requests_of_batch on requests (batch_id) where status = 'in_progress';
create index requests_predicted_early on requests (predictor_version, arrived_at)
    where status = 'queued' and predictor_version like 'running-%' and generated_ids = '{}' and sealed_group is null;
create index requests_preferred on requests (tenant)
    where status in ('queued', 'in_progress') and priority > 500;
create index requests_unanswered on requests (finished_at) where status in ('failed', 'cancelled');
create index requests_unfed on requests (planner_epoch) where status = 'queued';
create index requests_unpredicted on requests (priority desc, arrived_at)
    where status = 'queued' and predicted_tokens is null;
create index requests_unstored on requests (finished_at) where body ->> 'store' = 'false' and input <> '';

create table samples (
    at timestamptz primary key,
    backlog integer not null,
    in_flight integer not null,
    oldest_s double precision,
    answers integer not null,
    failed integer not null,
    answer_tokens bigint not null,
    response_p50_s double precision,
    response_p95_s double precision,
    response_p99_s double precision,
    predicted integer not null,
    squared_error double precision not null,
    covered integer not null,
    tau double precision,
    promised integer not null,
    eta_error_s double precision not null,
    eta_kept integer not null,
    estimated integer not null,
    estimate_error_s double precision not null,
    served_s double precision not null
);

create table service_state (
    name text primary key,
    value jsonb not null,
    updated_at timestamptz default clock_timestamp() not null
);

create table tenants (
    name text primary key,
    weight double precision default 1 not null,
    requests_per_minute integer,
    queued_requests integer,
    queued_tokens bigint,
    priority_requests integer,
    updated_at timestamptz default clock_timestamp() not null
);

create table usage_days (
    day date not null,
    tenant text not null,
    model text not null,
    requests bigint not null,
    prompt_tokens bigint not null,
    answer_tokens bigint not null,
    gpu_s double precision not null,
    tier text default 'default' not null,
    primary key (day, tenant, model, tier)
);

create table usage_entries (
    id bigserial primary key,
    day date not null,
    tenant text not null,
    model text not null,
    requests integer not null,
    prompt_tokens bigint not null,
    answer_tokens bigint not null,
    gpu_s double precision not null,
    tier text default 'default' not null
);

create table webhook_deliveries (
    id bigserial primary key,
    endpoint_id text not null,
    event_id text not null,
    type text not null,
    object_id text not null,
    event_at timestamptz default clock_timestamp() not null,
    attempts integer default 0 not null,
    next_attempt_at timestamptz default clock_timestamp(),
    delivered_at timestamptz,
    last_status integer,
    last_error text
);
create index webhook_deliveries_due on webhook_deliveries (endpoint_id, next_attempt_at)
    where next_attempt_at is not null;
create index webhook_deliveries_of_endpoint on webhook_deliveries (endpoint_id, id);

create table webhook_endpoints (
    id text primary key,
    tenant text not null,
    url text not null,
    events text[] not null,
    secret text not null,
    old_secret text,
    old_secret_until timestamptz,
    failures integer default 0 not null,
    created_at timestamptz default clock_timestamp() not null
);
create index webhook_endpoints_of_tenant on webhook_endpoints (tenant, id);

create table workers (
    name text primary key,
    model text not null,
    device text not null,
    theta_bytes bigint not null,
    delta_bytes bigint not null,
    windowed_bytes bigint default 0 not null,
    window_tokens bigint default 0 not null,
    curves jsonb,
    paged boolean default false not null,
    block_tokens integer default 1 not null,
    lacks text[] default '{}' not null,
    adapters text[] default '{}' not null,
    prefix_cache boolean default false not null,
    max_rows integer,
    fault text,
    row_lengths jsonb default '{}' not null,
    shared_tokens bigint default 0 not null,
    guessed_tokens bigint default 0 not null,
    right_guesses bigint default 0 not null,
    started_at timestamptz default clock_timestamp() not null,
    heartbeat_at timestamptz default clock_timestamp() not null,
    stopped_at timestamptz,
    stopping boolean default false not null,
    not_consuming_since timestamptz,
    version text,
    instance text,
    drained_at timestamptz,
    loadable jsonb default '{}' not null,
    wanted_model text,
    model_changes integer default 0 not null
);

create table bulk_lines (
    job_id text not null,
    line integer not null,
    choice smallint default 0 not null,
    custom_id text,
    request_id text,
    deadline_at timestamptz,
    error jsonb,
    primary key (job_id, line, choice),
    foreign key (job_id) references bulk_jobs (id) on delete cascade
);
create unique index bulk_lines_names on bulk_lines (job_id, custom_id) where request_id is not null;
create unique index bulk_lines_requests on bulk_lines (request_id) where request_id is not null;

create table file_chunks (
    file_id text not null,
    first_line integer not null,
    data bytea not null,
    primary key (file_id, first_line),
    foreign key (file_id) references files (id) on delete cascade
);

-- Autovacuum waits by default until a fifth of a table is dead and analyzes after a tenth has changed. With a million
-- requests, index scans then pass 200,000 dead rows, and the statistics lack a queue of 100,000.
alter table requests set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02);
alter table batches set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
    fillfactor = 80);
-- A few rows, each rewritten twice a second: with room on their pages no index entry is ever added.
alter table workers set (fillfactor = 50);
alter table service_state set (fillfactor = 50);
alter table file_chunks alter column data set storage external;

-- A trigger, because requests end in a dozen statements of several processes, which may be of an older version during
-- an upgrade. A tenant without an endpoint costs one index look-up.
create function write_webhook_deliveries() returns trigger language plpgsql as $$
begin
    if exists (select from webhook_endpoints where tenant = new.tenant) then
        insert into webhook_deliveries (endpoint_id, event_id, type, object_id)
        select id, 'evt_' || substr(new.id, 6), 'response.' || new.status, new.id from webhook_endpoints
        where tenant = new.tenant and 'response.' || new.status = any(events)
            and new.body->'background' = 'true'::jsonb;
    end if;
    return null;
end $$;
create trigger requests_webhooks after update of finished_at on requests for each row
    when (old.finished_at is null and new.finished_at is not null) execute function write_webhook_deliveries();

-- The installation's name and its secret; two random UUIDs have 244 random bits.
insert into service_state (name, value) values ('installation', jsonb_build_object(
    'id', substr(replace(gen_random_uuid()::text, '-', ''), 1, 12),
    'secret', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')));

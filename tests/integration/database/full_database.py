"""A database with 200,000 ended requests, 20,000 waiting ones, and beside them a little of everything else.

Its tables are so large that Postgres finds the rows of a statement by an index wherever there is one for them.
"""

from sqlalchemy import Engine, text

from benchmarks.inputs.filled_database import fill
from models.connections.session import make_sessions
from models.operations.minute_history import fold_totals

ENDED, QUEUED, BATCHES, ROWS_A_BATCH, NEW = 200_000, 20_000, 40, 10, 50
USING, ENTRIES = 50, 200  # tenants that used something each day, and what is not folded yet
DELIVERED = 20_000  # events
PROMISED, PROMISING = 20_000, 8  # promises, and the tenants that have some each hour
OLD_BATCHES = 80_000  # with them, as many batches as a million requests have
MODEL = "small"
LINES = 1000  # of the one bulk job that has not ended: all of them are answered
JOB, INPUT = f"batch_{0:032x}", f"file-{0:032x}"
BESIDE = (
    # files and bulk jobs of many tenants
    f"""insert into files (id, tenant, purpose, filename, bytes, lines, last_line, created_at)
    select 'file-' || lpad(to_hex(n), 32, '0'), 'tenant-' || n % 8, 'batch', 'f', 100, {LINES}, {LINES},
        now() - interval '1 min' * n from generate_series(0, 999) as n""",
    f"""insert into file_chunks (file_id, first_line, data) select '{INPUT}', 1 + 100 * n, '{{}}' from
    generate_series(0, 9) as n""",
    f"""insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, status, lines, last_line,
        next_line, expires_at, completed_at, created_at)
    select 'batch_' || lpad(to_hex(n), 32, '0'), 'tenant-' || n % 8, '/v1/responses', '{INPUT}', '24h',
        case when n = 0 then 'in_progress' else 'completed' end, {LINES}, {LINES}, case when n = 0 then 901 else 1001
        end,
        now() + interval '1 day', case when n > 0 then now() end, now() - interval '1 min' * n
    from generate_series(0, 999) as n""",
    f"""insert into bulk_lines (job_id, line, custom_id, request_id)
    select '{JOB}', n, 'line-' || n, 'resp_' || lpad(to_hex(n), 32, '0') from generate_series(1, 900) as n""",
    """insert into workers (name, model, longest_row_tokens, facts)
    select 'w' || n, 'small', 10000, jsonb_build_object('name', 'w' || n, 'model', 'small', 'device', 'cpu',
        'memory', '{"theta_bytes": 1000000, "delta_bytes": 100}'::jsonb) from generate_series(1, 4) as n""",
    # batches of the last day whose requests are deleted
    f"""insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s, sent_at,
        fence, started_at, finished_at)
    select 'filled-' || n % 4, 'fusion', 'finished', {ROWS_A_BATCH}, 60, 40, 2.0, at, 1, at, at
    from generate_series(1, {OLD_BATCHES}) as n,
        lateral (select now() - interval '1 day' * ({OLD_BATCHES} - n) / {OLD_BATCHES} as at) as ended""",
    # open batches with ten requests each, half of them taken
    f"""insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s, sent_at,
        fence, lease_until, started_at)
    select 'w' || 1 + n % 4, 'fusion', case when n % 2 = 0 then 'running' else 'assigned' end, {ROWS_A_BATCH}, 60, 40,
        2.0, now() - interval '1 min', n % 2, case when n % 2 = 0 then now() + interval '1 h' end,
        case when n % 2 = 0 then now() end
    from generate_series(1, {BATCHES}) as n""",
    f"""with open as (select id, row_number() over (order by id) as n from batches where finished_at is null),
        taken as (select id, row_number() over (order by arrived_at) as n from requests where status = 'queued'
            order by arrived_at limit {BATCHES * ROWS_A_BATCH})
    update requests r set status = 'in_progress', batch_id = open.id, attempts = 1,
        cancel_requested_at = case when taken.n % 20 = 0 then now() end
    from taken join open on open.n = 1 + taken.n % {BATCHES} where r.id = taken.id""",
    # what has just come: some not predicted, some not fetched by the planner, some with a deadline
    f"""with newest as (select id, row_number() over (order by arrived_at desc) as n from requests
        where status = 'queued' order by arrived_at desc limit {3 * NEW})
    update requests r set planner_epoch = case when n <= {2 * NEW} then 0 else 1 end,
        predicted_tokens = case when n <= {NEW} then null else 30 end,
        predictor_version = case when n <= {NEW} then null else 'length-1' end,
        deadline_at = case when n % 2 = 0 then now() - interval '1 s' else now() + interval '1 h' end
    from newest where r.id = newest.id""",
    """update requests set idempotency_key = id where id in (
        select id from requests where status = 'queued' order by arrived_at desc limit 1000)""",
    # forty days of history, closed until five minutes ago
    """insert into minutes (minute, arrived, completed, incomplete, failed, cancelled, batches, batched, valid_tokens,
        pad_tokens, invalid_tokens)
    select at, 700, 600, 30, 20, 0, 70, 700, 1, 1, 1 from generate_series(
        date_trunc('minute', now()) - interval '40 days', date_trunc('minute', now()) - interval '5 min', '1 min') as at
    """,
    """insert into model_versions (kind, version, active, sha256, stored, scores, data)
    select kind, kind || '-' || n, n = 8, '', '', '{}', '{}'
    from generate_series(1, 8) as n, unnest(array['length', 'serving_time']) as kind""",
    "insert into api_keys (name, tenant, prefix, sha256) select 'k', 'tenant-0', n, sha256(n::text::bytea) "
    "from generate_series(1, 50) as n",
    f"""insert into usage_days (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s)
    select current_date - d, 'tenant-' || t, 'small', 1, 1, 1, 1
    from generate_series(1, 600) as d, generate_series(1, {USING}) as t""",
    """insert into tenants (name, budget)
    select 'tenant-' || t, '{"amount": 20, "unit": "gpu_s", "period": "month"}' from generate_series(1, 20) as t
    on conflict (name) do update set budget = excluded.budget""",
    """insert into work_charges (tenant, at, unit, amount)
    select 'tenant-' || n % 100, now() - interval '1 s' * (n % 120), unit, 1
    from generate_series(1, 10000) as n, unnest(array['tokens', 'gpu_s']) as unit""",
    f"""insert into usage_entries (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s)
    select current_date, 'tenant-' || n % {USING}, 'small', 1, 1, 1, 1 from generate_series(1, {ENTRIES}) as n""",
    """insert into webhook_endpoints (id, tenant, url, events, secret)
    select 'we_' || n, 'tenant-0', 'https://e.com/', '{response.completed}', '' from generate_series(1, 3) as n""",
    # delivered ones, and a few that are due
    f"""insert into webhook_deliveries (endpoint_id, event_id, type, object_id, attempts, next_attempt_at, delivered_at)
    select 'we_' || 1 + n % 3, 'evt_' || n, 'response.completed', 'resp_' || n, 1,
        case when n > {DELIVERED} then now() end, case when n <= {DELIVERED} then now() end
    from generate_series(1, {DELIVERED} + 100) as n""",
    # settled promises, a hundred that are due and a hundred that are not, and the sums of a year
    f"""insert into promises (request_id, quote, tenant, tier, probability, tokens, sold_at, promised_by, look_at)
    select 'resp_' || lpad(to_hex(n), 32, '0'), n, 'tenant-' || n % 8, 'default', 0.9, 10,
        now() - interval '1 min' * ({PROMISED} - n), now() + interval '5 min' * sign(n - {PROMISED} + 100),
        case when n > {PROMISED} - 200 then now() + interval '5 min' * sign(n - {PROMISED} + 100) end
    from generate_series(1, {PROMISED}) as n""",
    f"""insert into promise_hours
    select date_trunc('hour', now()) - interval '1 hour' * h, 'tenant-' || t, 'small', 'default', 0.9, 10, 9, 0, 1, 0, 0
    from generate_series(0, 8760) as h, generate_series(1, {PROMISING}) as t""",
)


def make_full_database(engine: Engine) -> None:
    """Fill an empty database and bring statistics and visibility up to date, as autovacuum does."""
    with engine.connect() as connection:
        connection.execute(text("set maintenance_work_mem = '512MB'"))  # makes the indexes in half the time
        fill(connection, ENDED, QUEUED, MODEL)
        for statement in BESIDE:
            connection.execute(text(statement))
        connection.commit()
    with make_sessions(engine)() as session:
        fold_totals(session)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum analyze"))
        for table in (
            "requests",
            "batches",
        ):  # else statistics of rows that a case undid may decide another case's plan
            connection.execute(text(f"alter table {table} set (autovacuum_enabled = off)"))

"""Fills a database as months of service would: ended requests with their batches, and a long queue.

`fill` is for an empty database: it drops the indexes of the tables that it fills and creates them again afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from models.connections.session import make_engine
from models.operations.minute_history import close_minutes

TENANTS = 100  # the first tenant has every second request, so that others' requests lie between its own
APPLICATIONS = 20  # applications of each tenant; the dashboard shows 50 at most
REQUESTS_A_BATCH = 10  # the size of an ordinary batch; not tuned
WORKERS = 4
ENDED_WITHIN_S = 86_400  # the ended requests ended over this time: a million of them at 12 a second
# This share of the ended requests was cancelled within the last minutes. A query for recent answers must skip them, so
# there are many times as many as the answers that it reads.
CANCELLED_LATELY = 0.1
CANCELLED_WITHIN_S = 540

INDEXES = text("""
    select indexname, indexdef from pg_indexes i
    where schemaname = current_schema() and tablename = any(:tables)
        and not exists (select from pg_constraint c where c.conname = i.indexname)
""")
BATCHES = text("""
    insert into batches (worker, policy, status, joins, size, length, predicted_generation_length, estimated_s,
        assigned_at, sent_at, fence, started_at, finished_at, serving_s, iterations, generation_length, valid_tokens,
        pad_tokens, invalid_tokens, peak_kv_bytes)
    select 'filled-' || n % :workers, 'fusion', 'finished', true, :size, 60, 40, 2.0, ended - interval '3 s',
        ended - interval '3 s', 1, ended - interval '2 s', ended, 2.0, 60, 60, 400, 20, 30, 1000000
    from generate_series(1, :batches) as n,
        lateral (select now() - make_interval(secs => :within_s * (:batches - n)::float8 / :batches) as ended) as at
""")
ENDED = text("""
    insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens, input_tokens,
        limit_tokens, status, arrived_at, predicted_tokens, predicted_upper_tokens, predictor_version, planner_epoch,
        eta, batch_id, attempts, output_text, output_tokens, finish_reason, started_at, finished_at)
    select 'resp_' || lpad(to_hex(n), 32, '0'), 'tenant-' || case when n % 2 = 0 then 0 else n % :tenants end,
        :model, 'application-' || n % :applications, 'Translate into German.', repeat('some words ', 3 + n % 10),
        '{"metadata": {}, "background": true, "stop": [],
          "sampling": {"temperature": 0, "top_p": 1, "top_k": 0, "seed": null}}',
        20 + n % 40, 15 + n % 40, 256,
        case when n > :answers then 'cancelled' when n % 50 = 0 then 'failed' when n % 20 = 0 then 'incomplete'
            else 'completed' end,
        ended - interval '5 s', 30 + n % 40, 80 + n % 40, 'length-1', 1,
        '{"forecast_s": 5, "eta_s": 5, "low_s": 4, "high_s": 6}', n / :size + 1, 1,
        repeat('one word ', 2 + n % 20), 10 + n % 90, 'eos', ended - interval '2 s', ended
    from generate_series(1, :ended) as n,
        lateral (select now() - make_interval(secs => case when n > :answers
            then :cancelled_within_s * (:ended - n)::float8 / (:ended - :answers)
            else :within_s * (:answers - n)::float8 / :answers end) as ended) as at
""")
QUEUED = text("""
    insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens, input_tokens,
        limit_tokens, arrived_at, predicted_tokens, predicted_upper_tokens, predictor_version, planner_epoch)
    select 'resp_f' || lpad(to_hex(n), 31, '0'), 'tenant-' || case when n % 2 = 0 then 0 else n % :tenants end,
        :model, 'application-' || n % :applications, 'Translate into German.', repeat('some words ', 3 + n % 10),
        '{"metadata": {}, "background": true, "stop": [],
          "sampling": {"temperature": 0, "top_p": 1, "top_k": 0, "seed": null}}',
        20 + n % 40, 15 + n % 40, 256, now() - make_interval(secs => (:queued - n) * 0.01), 30 + n % 40, 80 + n % 40,
        'running-00000001', 1
    from generate_series(1, :queued) as n
""")
WORKERS_GONE = text("""
    insert into workers (name, model, longest_row_tokens, stopped_at, facts)
    select 'filled-' || n, :model, 10000, clock_timestamp(), jsonb_build_object('name', 'filled-' || n,
        'model', cast(:model as text), 'device', 'cpu',
        'memory', jsonb_build_object('theta_bytes', 1000000, 'delta_bytes', 100))
    from generate_series(0, :workers - 1) as n
""")


@contextmanager
def without_indexes(connection: Connection, *tables: str) -> Iterator[None]:
    """Drop the indexes of these tables while they are filled."""
    indexes = connection.execute(INDEXES, {"tables": list(tables)}).all()
    for index in indexes:
        connection.execute(text(f'drop index "{index.indexname}"'))
    yield
    for index in indexes:
        connection.execute(text(index.indexdef))


def fill(connection: Connection, finished: int, queued: int, model: str) -> None:
    """Insert `finished` ended and `queued` waiting requests of this model, and update the planner's statistics.

    A tenth of the ended requests were cancelled within the last minutes. The waiting requests have predictions, by the
    running quantiles of a cold start, and no present planner has fetched them.
    """
    values = {
        "model": model,
        "tenants": TENANTS,
        "applications": APPLICATIONS,
        "size": REQUESTS_A_BATCH,
        "workers": WORKERS,
        "within_s": ENDED_WITHIN_S,
        "cancelled_within_s": CANCELLED_WITHIN_S,
        "batches": finished // REQUESTS_A_BATCH + 1,
        "ended": finished,
        "answers": round(finished * (1 - CANCELLED_LATELY)),
        "queued": queued,
    }
    with without_indexes(connection, "requests", "batches"):
        for statement in (WORKERS_GONE, BATCHES, ENDED, QUEUED):
            connection.execute(statement, {name: values[name] for name in statement.compile().params})
    connection.commit()


def fill_service(url: str, model: str, finished: int, queued: int = 0) -> None:
    """Fill a service's empty database with ended and waiting requests, close its history's minutes, and vacuum it."""
    engine = make_engine(url, answer_within_s=None, pool_size=1, name="benchmark")
    with engine.connect() as connection:
        fill(connection, finished, queued, model)
    with Session(engine) as session:
        while close_minutes(session):
            pass
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum analyze"))
        connection.execute(text("checkpoint"))
    engine.dispose()

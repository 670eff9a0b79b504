"""The history by minute: a minute's figures are computed once, after its end, and outlive the minute's requests."""

from sqlalchemy import bindparam, extract, func, select
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, JSONB
from sqlalchemy.orm import Session

from models.connections.sql import text
from models.service_tables import Minute, ServiceState
from models.tables import RequestStatus

# A minute is closed this many seconds after its end, because an answer is written some time after its `finished_at`. An
# answer that is written after its minute was closed is not counted. A longer time delays the newest minute of the
# charts; not tuned.
GRACE_S = 30
# One call closes at most this many minutes, which bounds the statement that catches up after a pause: ten minutes at
# 1,000 requests a second are 600,000 rows. Not tuned otherwise.
MOST_MINUTES = 10

CLOSE = text("""
    with bounds as (
        select coalesce(
            (select max(minute) + interval '1 minute' from minutes),
            (select date_trunc('minute', min(arrived_at)) from unnest(cast(:statuses as text[])) as state, lateral (
                select arrived_at from requests where status = state order by arrived_at limit 1
            ) as oldest)
        ) as first, date_trunc('minute', clock_timestamp() - make_interval(secs => :grace_s)) as last
    ), open as (
        select minute, minute + interval '1 minute' as ends
        from bounds, generate_series(first, last - interval '1 minute', interval '1 minute') as minute
        limit :most
    ), span as (
        select min(minute) as first, max(ends) as last from open
    ), ended as (
        select status, arrived_at, finished_at, output_tokens from requests, span
        where status in ('completed', 'incomplete') and finished_at >= first and finished_at < last
        union all
        select status, arrived_at, finished_at, 0 from requests, span
        where status in ('failed', 'cancelled') and finished_at >= first and finished_at < last
    ), answers as (
        select date_trunc('minute', finished_at) as minute,
            count(*) filter (where status = 'completed') as completed,
            count(*) filter (where status = 'incomplete') as incomplete,
            count(*) filter (where status = 'failed') as failed,
            count(*) filter (where status = 'cancelled') as cancelled,
            percentile_cont(array[0.5, 0.95, 1, 0.99]) within group (
                order by extract(epoch from finished_at - arrived_at)
            ) filter (where status in ('completed', 'incomplete')) as response_s,
            sum(output_tokens) filter (where status in ('completed', 'incomplete')) as answer_tokens
        from ended group by 1
    ), arrivals as (
        select date_trunc('minute', arrived_at) as minute, count(*) as arrived
        from unnest(cast(:statuses as text[])) as state, span, lateral (
            select arrived_at from requests where status = state and arrived_at >= first and arrived_at < last
        ) as arrival group by 1
    ), work as (
        select date_trunc('minute', finished_at) as minute, count(*) as batches, sum(size) as batched,
            sum(valid_tokens) as valid_tokens, sum(pad_tokens) as pad_tokens, sum(invalid_tokens) as invalid_tokens
        from batches, span where status = 'finished' and finished_at >= first and finished_at < last group by 1
    ), sampled as (
        select date_trunc('minute', at - interval '10 s') as minute, max(backlog) as backlog,
            max(in_flight) as in_flight, max(oldest_s) as oldest_s, sum(predicted) as predicted,
            sum(squared_error) as squared_error, sum(covered) as covered,
            (array_agg(tau order by at desc) filter (where tau is not null))[1] as tau, sum(promised) as promised,
            sum(eta_error_s) as eta_error_s, sum(eta_kept) as eta_kept, sum(estimated) as estimated,
            sum(estimate_error_s) as estimate_error_s, sum(served_s) as served_s
        from samples, span where at > first and at <= last group by 1
    )
    insert into minutes (minute, arrived, completed, incomplete, failed, cancelled, response_p50_s, response_p95_s,
        response_max_s, batches, batched, valid_tokens, pad_tokens, invalid_tokens, response_p99_s, answer_tokens,
        backlog, in_flight, oldest_s, predicted, squared_error, covered, tau, promised, eta_error_s, eta_kept,
        estimated, estimate_error_s, served_s)
    select minute, coalesce(arrived, 0), coalesce(completed, 0), coalesce(incomplete, 0), coalesce(failed, 0),
        coalesce(cancelled, 0), response_s[1], response_s[2], response_s[3], coalesce(batches, 0), coalesce(batched, 0),
        coalesce(valid_tokens, 0), coalesce(pad_tokens, 0), coalesce(invalid_tokens, 0), response_s[4],
        coalesce(answer_tokens, 0), backlog, in_flight, oldest_s, predicted, squared_error, covered, tau, promised,
        eta_error_s, eta_kept, estimated, estimate_error_s, served_s
    from open left join answers using (minute) left join arrivals using (minute) left join work using (minute)
        left join sampled using (minute)
    on conflict do nothing returning minute
""")

FOLD = text("""
    insert into service_state (name, value) values ('ended', :value)
    on conflict (name) do update set value = excluded.value, updated_at = clock_timestamp()
    where (service_state.value->>'until')::float8 = :stored_until
""").bindparams(bindparam("value", type_=JSONB))


def close_minutes(session: Session) -> int:
    """Closes the minutes that are over, at most MOST_MINUTES, and returns their number; calls may be concurrent."""
    statuses = [status.value for status in RequestStatus]
    closed = session.execute(CLOSE, {"grace_s": GRACE_S, "most": MOST_MINUTES, "statuses": statuses}).all()
    session.commit()
    return len(closed)


def ended_last_hour(session: Session) -> dict[str, int]:
    """Returns the number of requests that ended within the last hour, by final state."""
    row = session.execute(
        text("""
            with closed as (
                select coalesce(sum(completed), 0) as completed, coalesce(sum(incomplete), 0) as incomplete,
                    coalesce(sum(failed), 0) as failed, coalesce(sum(cancelled), 0) as cancelled,
                    coalesce(max(minute) + interval '1 minute', statement_timestamp() - interval '1 h') as until
                from minutes where minute >= statement_timestamp() - interval '1 h'
            ), ended as (
                select status from requests
                where status in ('completed', 'incomplete') and finished_at >= (select until from closed)
                union all
                select status from requests
                where status in ('failed', 'cancelled') and finished_at >= (select until from closed)
            ), fresh as (
                select count(*) filter (where status = 'completed') as completed,
                    count(*) filter (where status = 'incomplete') as incomplete,
                    count(*) filter (where status = 'failed') as failed,
                    count(*) filter (where status = 'cancelled') as cancelled
                from ended
            )
            select (c.completed + f.completed)::int as completed, (c.incomplete + f.incomplete)::int as incomplete,
                (c.failed + f.failed)::int as failed, (c.cancelled + f.cancelled)::int as cancelled
            from closed c, fresh f
        """)
    ).one()
    return dict(row._mapping)


def ended_totals(session: Session) -> dict[str, int]:
    """Returns the number of requests that ended in all closed minutes, by final state; the numbers never shrink."""
    return _total(session)[0]


def fold_totals(session: Session) -> None:
    """Adds the minutes closed since the last call to the stored totals; if two calls run at once, only one adds."""
    totals, until, stored_until = _total(session)
    if until != stored_until:
        session.execute(FOLD, {"value": {**totals, "until": until}, "stored_until": stored_until})
        session.commit()


def _total(session: Session) -> tuple[dict[str, int], float, float]:
    """Returns counts by final state, the newest minute counted in them, and the newest one in the stored totals."""
    stored = session.get(ServiceState, "ended", populate_existing=True)
    value = stored.value if stored else {}
    stored_until = value.get("until", 0.0)
    counts = (Minute.completed, Minute.incomplete, Minute.failed, Minute.cancelled)
    row = session.execute(
        select(*map(func.sum, counts), extract("epoch", func.max(Minute.minute)).cast(DOUBLE_PRECISION)).where(
            Minute.minute > func.to_timestamp(stored_until)
        )
    ).one()
    totals = {count.key: value.get(count.key, 0) + (added or 0) for count, added in zip(counts, row[:-1], strict=True)}
    return totals, row[-1] or stored_until, stored_until

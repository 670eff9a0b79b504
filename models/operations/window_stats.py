"""The service's figures for a window of time: batches, tokens, idle share of workers. They show no tenant's data."""

from dataclasses import dataclass, fields

from sqlalchemy.orm import Session

from models.connections.sql import text
from models.operations.service_history import UNSTARTED
from models.planning.queue_snapshot import read_queue_snapshot
from models.service_tables import ServiceState

FETCH_STATS = text(f"""
    with bounds as (
        select clock_timestamp() as now,
            coalesce(to_timestamp(:since), clock_timestamp() - interval '60 s') as first,
            coalesce(to_timestamp(:until), clock_timestamp()) as last
    ), ran as (
        -- the first condition is the one that the index `batches_by_time` serves, the second is exact
        select batches.* from batches, bounds
        where tstzrange(started_at, greatest(started_at, finished_at), '[]') && tstzrange(first, greatest(first, last))
            and started_at is not null and finished_at is not null and started_at < last and finished_at >= first
    ), ended as (
        -- both instants are computed from the times of their writes: a short batch may seem to end before it began
        select ran.*, tstzrange(started_at, greatest(started_at, finished_at)) as span,
            greatest(0.0, extract(epoch from finished_at - started_at)) as lasted_s
        from ran, bounds where status = 'finished' and started_at >= first
    ), served as (
        -- a row generates one token an iteration, so that tokens times seconds an iteration are the seconds for which
        -- rows decoded, also those that left early
        select count(*) as batches, coalesce(sum(valid_tokens), 0) as valid_tokens,
            coalesce(sum(pad_tokens), 0) as pad_tokens, coalesce(sum(invalid_tokens), 0) as invalid_tokens,
            sum((valid_tokens + invalid_tokens) * lasted_s / nullif(iterations, 0))::float8 as rows_s
        from ended
    ), serving as (
        select worker, unnest(range_agg(span)) as span from ended group by worker
    ), busy as (
        select worker, unnest(range_agg(
            tstzrange(started_at, greatest(started_at, coalesce(finished_at, now)))
                * tstzrange(first, greatest(first, last))
        )) as span
        from (
            select worker, started_at, finished_at from ran where status <> 'lost'
            union all
            select worker, started_at, finished_at from batches, bounds where status = 'running' and started_at < last
        ) as served, bounds
        group by worker
    ), present as (
        -- started_at is that of the worker's newest process; earlier batches show that the worker was present before
        select name, least(last, coalesce(stopped_at, heartbeat_at + interval '1 s')) - greatest(first, least(
            started_at, (select min(lower(span)) from busy where worker = name)
        )) as span
        from workers, bounds where started_at < last and coalesce(stopped_at, heartbeat_at) >= first
    ), waiting as (
        select (select count(*) from requests where status = 'queued') as queued,
            (select count(*) from requests where status = 'in_progress') as in_progress,
            (select count(*) from {UNSTARTED}) as unstarted
    )
    select extract(epoch from now)::float8 as now, extract(epoch from first)::float8 as since,
        extract(epoch from last)::float8 as until, batches, valid_tokens, pad_tokens, invalid_tokens,
        queued + unstarted as queued, in_progress - unstarted as in_progress,
        (select count(*) from batches where status in ('assigned', 'running')) as open_batches,
        (select count(*) from present) as workers,
        rows_s / (select nullif(extract(epoch from sum(upper(span) - lower(span))), 0)::float8 from serving)
            as mean_batch_size,
        (select coalesce(extract(epoch from sum(upper(span) - lower(span))), 0)::float8 from busy
            where worker in (select name from present)) as busy_s,
        (select extract(epoch from sum(greatest(span, interval '0')))::float8 from present) as present_s
    from bounds, served, waiting
""")  # noqa: S608  # a constant


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Figures of the batches that began in the window and have finished; instants are Unix times of the database."""

    now: float
    since: float
    until: float
    policy: str | None
    queued: int  # requests that wait at `now`, also those of batches that no worker has begun in time
    in_progress: int  # other requests that have not ended at `now`
    open_batches: int  # batches that are assigned or running at `now`
    batches: int
    mean_batch_size: float | None  # rows that a worker decoded together, averaged over its decoding time
    valid_tokens: int
    pad_tokens: int
    invalid_tokens: int
    workers: int  # workers that were present in the window
    worker_idle_share: float | None  # idle share of the time for which workers were present; None without any


def window_stats(session: Session, since: float | None = None, until: float | None = None) -> WindowStats:
    """Returns the figures from `since` (default: a minute ago) to `until` (default: now), Unix times."""
    row = session.execute(FETCH_STATS, {"since": since, "until": until}).one()
    snapshot = read_queue_snapshot(session)  # also names the planner's default policy if no policy is set
    chosen = session.get(ServiceState, "policy")
    policy = snapshot.decisions.policy if snapshot else chosen.value["name"] if chosen else None
    idle = None if not row.present_s else min(1.0, max(0.0, 1.0 - row.busy_s / row.present_s))
    figures = {field.name: row._mapping[field.name] for field in fields(WindowStats) if field.name in row._mapping}
    return WindowStats(**figures, policy=policy, worker_idle_share=idle)

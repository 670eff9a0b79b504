"""What the database says of a run: throughput, response times, how long workers ran nothing while requests waited."""

from typing import Any

from sqlalchemy import Connection, text

SERVED = text("""
    with served as (
        select extract(epoch from arrived_at)::float8 as arrived, extract(epoch from finished_at)::float8 as finished
        from requests where arrived_at >= to_timestamp(:since) and status = 'completed'
    ), arrivals as (
        select min(arrived) + (max(arrived) - min(arrived)) / 3 as began, max(arrived) as ended,
            (count(*) - 1) / nullif(max(arrived) - min(arrived), 0) as per_s
        from served
    )
    select count(*) as requests, (select per_s from arrivals) as accepted_per_s,
        count(*) filter (where finished > began and finished <= ended) / nullif(max(ended - began), 0) as served_per_s,
        avg(finished - arrived)::float8 as mean,
        percentile_cont(array[0.5, 0.99]) within group (order by finished - arrived) as percentiles
    from served, arrivals
""")

# A request counts as waiting from a quarter of a second after its arrival on: until then it is being predicted, planned
# and sent. A worker is busy while any batch of its own runs.
IDLE = text("""
    with busy as (
        select worker, unnest(range_agg(tstzrange(started_at, finished_at))) as span
        from batches where started_at >= to_timestamp(:since) and finished_at > started_at group by worker
    ), waits as (
        select unnest(range_agg(tstzrange(arrived_at + interval '0.25 s', started_at))) as span from requests
        where arrived_at >= to_timestamp(:since) and started_at > arrived_at + interval '0.25 s'
    ), worked as (
        select b.span * w.span as span from busy b join waits w on b.span && w.span
    )
    select
        (select coalesce(sum(extract(epoch from upper(span) - lower(span))), 0)::float8 from waits) as waited_s,
        (select coalesce(sum(extract(epoch from upper(span) - lower(span))), 0)::float8 from worked) as busy_s,
        (select count(*) from batches where started_at >= to_timestamp(:since)) as batches
""")


def served_since(connection: Connection, since: float) -> dict[str, Any]:
    """Requests served that arrived at the instant `since` or later, and their response times in seconds.

    `served_per_s` is the rate of answers from a third of the arrivals' time on until the last one: neither the filling
    of the fleet nor its end, which a longer run would make unimportant, lowers it.
    """
    row = connection.execute(SERVED, {"since": since}).one()
    return {
        "requests": row.requests,
        "served_per_s": round(float(row.served_per_s or 0.0), 2),
        "accepted_per_s": round(float(row.accepted_per_s or 0.0), 2),
        "response_s": {
            "mean": round(row.mean, 3),
            "p50": round(row.percentiles[0], 3),
            "p99": round(row.percentiles[1], 3),
        },
    }


def idle_since(connection: Connection, since: float, workers: int) -> dict[str, Any]:
    """The share of the workers' seconds in which one ran nothing although a request waited; None if none waited."""
    row = connection.execute(IDLE, {"since": since}).one()
    waited_s = workers * row.waited_s
    return {
        "batches": row.batches,
        "waited_s": round(row.waited_s, 2),
        "idle_while_waiting": round(1 - row.busy_s / waited_s, 4) if waited_s else None,
    }

"""The service's history for charts: takes a sample every ten seconds, reads samples and closed minutes as points."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from models.connections.sql import text

# A batch may be on its way to its worker for this many seconds; if the worker has not begun it by then, its requests
# count as waiting. Longer than a worker needs to take a message on a busy host. Not tuned.
UNSTARTED_S = 10
# The requests `r` of the batches `b` that were assigned UNSTARTED_S ago or longer, and that no worker has begun.
UNSTARTED = f"""requests r join batches b on b.id = r.batch_id where r.status = 'in_progress' and b.status = 'assigned'
    and b.assigned_at < statement_timestamp() - interval '{UNSTARTED_S} s'"""

# A sample is taken this many seconds after the end of its ten seconds, because an answer is written somewhat later than
# its `finished_at`. Not tuned.
GRACE_S = 2
KEPT_S = 3600  # how long samples are kept: the shortest chart shows 15 minutes, longer ones read the rows of minutes

TAKE = text(f"""
    with last as (
        select date_bin('10 s', statement_timestamp() - make_interval(secs => :grace_s), 'epoch') as at
    ), due as (
        select generate_series(
            greatest(coalesce((select max(at) from samples) + interval '10 s', last.at), last.at - interval '50 s'),
            last.at, interval '10 s'
        ) as at from last
    ), span as (
        select min(at) - interval '10 s' as first, max(at) as last from due
    ), ended as (
        select *, extract(epoch from finished_at - arrived_at)::float8 as took_s
        from requests where status in ('completed', 'incomplete')
            and finished_at >= (select first from span) and finished_at < (select last from span)
    ), answers as (
        select date_bin('10 s', finished_at, 'epoch') + interval '10 s' as at, count(*) as answers,
            sum(output_tokens) as answer_tokens,
            percentile_cont(array[0.5, 0.95, 0.99]) within group (order by took_s) as response_s,
            count(predicted_tokens) filter (where status = 'completed' and kind = 'answer') as predicted,
            sum((predicted_tokens - output_tokens)::float8 ^ 2)
                filter (where status = 'completed' and kind = 'answer') as squared_error,
            count(*) filter (
                where status = 'completed' and kind = 'answer' and output_tokens <= predicted_upper_tokens
            ) as covered,
            count(eta->>'low_s') as promised,
            sum(abs(took_s - (eta->>'eta_s')::float8)) filter (where eta->>'low_s' is not null) as eta_error_s,
            count(*) filter (where took_s between (eta->>'low_s')::float8 and (eta->>'high_s')::float8) as eta_kept
        from ended group by 1
    ), failures as (
        select date_bin('10 s', finished_at, 'epoch') + interval '10 s' as at, count(*) as failed
        from requests where status in ('failed', 'cancelled') and status = 'failed' -- the first selects the index
            and finished_at >= (select first from span) and finished_at < (select last from span) group by 1
    ), served as (
        select date_bin('10 s', finished_at, 'epoch') + interval '10 s' as at, count(*) as estimated,
            sum(abs(serving_s - estimated_s)) as estimate_error_s, sum(serving_s) as served_s
        from batches where finished_at is not null and status = 'finished' and serving_s > 0 and estimated_s > 0
            and finished_at >= (select first from span) and finished_at < (select last from span) group by 1
    )
    insert into samples (at, backlog, in_flight, oldest_s, answers, failed, answer_tokens, response_p50_s,
        response_p95_s, response_p99_s, predicted, squared_error, covered, tau, promised, eta_error_s, eta_kept,
        estimated, estimate_error_s, served_s)
    select at, (select count(*) from requests where status = 'queued') + unstarted
            - (select count(*) from requests where status = 'queued' and held),
        (select count(*) from requests where status = 'in_progress') - unstarted,
        extract(epoch from statement_timestamp() - least(unstarted_since,
            (select arrived_at from requests where status = 'queued' and not held
                order by arrived_at limit 1)))::float8,
        coalesce(answers, 0), coalesce(failed, 0), coalesce(answer_tokens, 0), response_s[1], response_s[2],
        response_s[3], coalesce(predicted, 0), coalesce(squared_error, 0), coalesce(covered, 0),
        (select (value->>'tau')::float8 from service_state where name = 'prediction'),
        coalesce(promised, 0), coalesce(eta_error_s, 0), coalesce(eta_kept, 0), coalesce(estimated, 0),
        coalesce(estimate_error_s, 0), coalesce(served_s, 0)
    from due cross join (select count(*) as unstarted, min(r.arrived_at) as unstarted_since from {UNSTARTED}) as sent
        left join answers using (at) left join failures using (at) left join served using (at)
    on conflict do nothing returning at
""")  # noqa: S608  # a constant
FORGET = text("delete from samples where at < statement_timestamp() - make_interval(secs => :kept_s)")

SUMMED = (
    "answers",
    "failed",
    "answer_tokens",
    "predicted",
    "squared_error",
    "covered",
    "promised",
    "eta_error_s",
    "eta_kept",
    "estimate_error_s",
    "served_s",
)
COUNTED = {name for name in SUMMED if not name.endswith(("_s", "_error"))}
LARGEST = ("backlog", "in_flight", "oldest_s", "response_p50_s", "response_p95_s", "response_p99_s")
SAMPLED = f"""
    select at - interval '10 s' as at, 10 as seconds, {", ".join((*SUMMED, *LARGEST))}, tau
    from samples where at > statement_timestamp() - make_interval(secs => :back_s)
"""  # noqa: S608  # names of columns
CLOSED = f"""
    select minute as at, 60 as seconds, completed + incomplete as answers, failed,
        coalesce(answer_tokens, valid_tokens) as answer_tokens, {", ".join((*SUMMED[3:], *LARGEST))}, tau
    from minutes where minute > statement_timestamp() - make_interval(secs => :back_s)
    union all {SAMPLED} and at > coalesce((select max(minute) from minutes), '-infinity') + interval '1 min'
"""  # noqa: S608  # names of columns
READ = """
    select date_bin(make_interval(secs => :step_s), at, 'epoch') as at, sum(seconds)::int as seconds, {sums}, {largest},
        (array_agg(tau order by at desc) filter (where tau is not null))[1] as tau
    from ({points}) as points group by 1 order by 1
"""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """`Sample`'s columns over `seconds` seconds from `at`; None for an unknown figure.

    `tau` is the newest one. Backlog, requests in flight, age and response times are maxima, the others are sums.
    """

    at: datetime
    seconds: int
    answers: int
    failed: int
    answer_tokens: int
    predicted: int | None
    squared_error: float | None
    covered: int | None
    promised: int | None
    eta_error_s: float | None
    eta_kept: int | None
    estimate_error_s: float | None
    served_s: float | None
    backlog: int | None
    in_flight: int | None
    oldest_s: float | None
    response_p50_s: float | None
    response_p95_s: float | None
    response_p99_s: float | None
    tau: float | None


def take_samples(session: Session) -> int:
    """Takes the samples that are due, at most six of them; returns their number. Calls may be concurrent."""
    taken = len(session.execute(TAKE, {"grace_s": GRACE_S}).all())
    session.execute(FORGET, {"kept_s": KEPT_S})
    session.commit()
    return taken


def history(session: Session, back_s: int, step_s: int) -> list[HistoryPoint]:
    """Returns a point for each `step_s` of the last `back_s`, oldest first; steps below a minute reach KEPT_S back."""
    query = READ.format(
        # the cast is needed, because a sum of bigints is a numeric
        sums=", ".join(f"sum({name})::{'bigint' if name in COUNTED else 'float8'} as {name}" for name in SUMMED),
        largest=", ".join(f"max({name}) as {name}" for name in LARGEST),
        points=CLOSED if step_s >= 60 else SAMPLED,
    )
    rows = session.execute(text(query), {"back_s": back_s, "step_s": step_s})
    return [HistoryPoint(**row._mapping) for row in rows]

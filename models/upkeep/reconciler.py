"""Recovers from expired leases, lost messages, unreachable workers and missing predictors; enforces deadlines."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection

from models.connections.sql import text
from models.leasing.requeue import lose_batches

# The applications' mean lengths, used when no predictor works, are means of this many newest answers. More answers
# cover rarer applications and react later when lengths change; not tuned.
ANSWERS_FOR_MEANS = 2000
# One statement of the planner's step changes at most this many requests, which takes some tenths of a second; the next
# step changes the next ones. All 50,000 lines of a bulk job may have the same deadline. Not tuned.
CHANGED_AT_ONCE = 5000
# Fewer requests end at their deadline in one statement, because a predictor that writes to them waits for its end: some
# hundredths of a second. Not tuned.
EXPIRED_AT_ONCE = 1000


def lose_expired_batches(connection: Connection, lease_s: float) -> list[str]:
    """Marks batches as lost whose lease expired or whose worker is gone; returns the ids of their unfinished requests.

    A worker is gone if it deregistered or its last heartbeat is older than `lease_s`; then all its batches are lost at
    once, whenever it took them. The requests that it was serving are suspects: one may have killed it. A lease that a
    live worker lets expire is no failure: the worker never began that batch, or no longer holds the lease.
    """
    lost = """
        select b.id, b.status = 'running' and w.gone from batches b join lateral (
            select coalesce(bool_and(stopped_at is not null or heartbeat_at
                < statement_timestamp() - make_interval(secs => :lease_s)), true) as gone
            from workers where name = b.worker
        ) w on true
        where b.status in ('assigned', 'running')
            and (w.gone or b.status = 'running' and b.lease_until < statement_timestamp())
    """
    return lose_batches(connection, lost, {"lease_s": lease_s})


def withdraw_untaken_batches(connection: Connection, resend_s: float, most_sends: int) -> list[str]:
    """Takes back batches that were sent `most_sends` times and never taken; returns the workers that took none.

    Such a worker reaches the database but not its queue, and gets no batch until it has taken a message. The requests
    of these batches are queued again without counting an attempt. A worker that began a batch lately is only slow.
    """
    silent = connection.execute(
        text("""
            update workers set not_consuming_since = clock_timestamp()
            where not_consuming_since is null and name in (
                select worker from batches where status = 'assigned' and sends >= :most_sends
                    and sent_at < statement_timestamp() - make_interval(secs => :resend_s)
            ) and not exists (
                select from batches taken where taken.worker = workers.name and taken.status = 'running'
                    and taken.started_at > statement_timestamp() - make_interval(secs => :most_sends * :resend_s)
            ) and not exists (
                select from batches taken where taken.worker = workers.name and taken.started_at is not null
                    and taken.finished_at > statement_timestamp() - make_interval(secs => :most_sends * :resend_s)
            ) returning name
        """),
        {"resend_s": resend_s, "most_sends": most_sends},
    )
    names = sorted(row.name for row in silent)
    untaken = "select b.id, false from batches b where b.status = 'assigned' and b.worker = any(cast(:names as text[]))"
    if names:
        lose_batches(connection, untaken, {"names": names})
    return names


def workers_to_probe(connection: Connection, alive_s: float) -> list[str]:
    """Returns the names of live workers that get no batch until they have taken a message."""
    rows = connection.execute(
        text("""
            select name from workers where not_consuming_since is not null and stopped_at is null
                and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s) order by name
        """),
        {"alive_s": alive_s},
    )
    return [row.name for row in rows]


def batches_to_resend(connection: Connection, resend_s: float, on_time_s: float) -> list[tuple[int, str]]:
    """Returns batches sent over `resend_s` ago and never taken, as (batch id, worker's name); marks them as sent.

    A send counts only if the worker's heartbeat is at most `on_time_s` old: a starved process takes messages late.
    """
    rows = connection.execute(
        text("""
            update batches b set sent_at = clock_timestamp(), sends = sends + exists(
                select from workers w where w.name = b.worker
                    and w.heartbeat_at > statement_timestamp() - make_interval(secs => :on_time_s)
            )::int
            where status = 'assigned' and sent_at < statement_timestamp() - make_interval(secs => :resend_s)
            returning id, worker
        """),
        {"resend_s": resend_s, "on_time_s": on_time_s},
    )
    return sorted((row.id, row.worker) for row in rows)


def write_fallback_predictions(connection: Connection, grace_s: float) -> int:
    """Predicts up to CHANGED_AT_ONCE requests, unpredicted for `grace_s`, by application means; returns how many.

    Without answers of the application, the prediction is the limit. The upper quantile is always the limit.
    """
    return connection.execute(
        text("""
            with recent as (
                select tenant, application, output_tokens, status from requests
                where status in ('completed', 'incomplete') order by finished_at desc limit :answers
            ), means as (
                select tenant, application, ceil(avg(output_tokens))::int as mean from recent
                where status = 'completed' group by tenant, application
            ), unpredicted as (
                select id, tenant, application from requests
                where status = 'queued' and predicted_tokens is null
                    and arrived_at < statement_timestamp() - make_interval(secs => :grace_s)
                limit :most for update skip locked
            )
            update requests r set
                predicted_tokens = least(r.limit_tokens, greatest(1, coalesce(m.mean, r.limit_tokens))),
                predicted_upper_tokens = r.limit_tokens,
                predictor_version = case when m.mean is null then 'limit' else 'application mean' end
            from unpredicted u left join means m using (tenant, application)
            where r.id = u.id
        """),
        {"grace_s": grace_s, "answers": ANSWERS_FOR_MEANS, "most": CHANGED_AT_ONCE},
    ).rowcount


def fail_too_large(
    connection: Connection, model: str, largest_tokens: int, among: Collection[str] | None = None
) -> list[str]:
    """Fails queued requests that the model's largest worker cannot hold; returns their ids.

    Checks all queued requests, or only `among` these ids, whose rows the caller has found queued and locked.
    """
    error = """case when outgrew_tokens >= :largest_tokens
        then jsonb_build_object('code', 'out_of_memory', 'message',
            'The request alone ran out of memory on the largest worker, whose key-value cache holds '
            || :largest_tokens || ' tokens: ' || prompt_tokens || ' of its prompt and '
            || cardinality(generated_ids) || ' of its answer.')
        else jsonb_build_object('code', 'context_length_exceeded', 'message',
            'The prompt has ' || prompt_tokens || ' tokens, but the key-value cache of the largest worker '
            || 'holds ' || :largest_tokens || ' with the answer.') end"""
    which = f"""{"status = 'queued'" if among is None else "id = any(cast(:ids as text[]))"}
        and coalesce(base, model) = :model
        and (prompt_tokens + cardinality(generated_ids) >= :largest_tokens or outgrew_tokens >= :largest_tokens)"""
    ids = {} if among is None else {"ids": list(among)}
    return _fail(connection, which, error, {"model": model, "largest_tokens": largest_tokens, **ids})


def fail_unschedulable(connection: Connection, request_id: str) -> None:
    """Fails a request for which the scheduling policy itself raises an error."""
    error = """jsonb_build_object('code', 'unschedulable', 'message',
        'The scheduling policy fails with this request; it was set aside, and the error is logged.')"""
    _fail(connection, "id = :id", error, {"id": request_id})


def expire_deadlines(connection: Connection) -> list[str]:
    """Fails up to EXPIRED_AT_ONCE queued requests after their deadline (`deadline_exceeded`); returns their ids."""
    error = """jsonb_build_object('code', 'deadline_exceeded', 'message',
        'The deadline passed while the request waited.')"""
    which = """id = any(array(
        select id from requests where status = 'queued' and deadline_at < statement_timestamp()
        order by deadline_at limit :most for update skip locked
    ))"""
    return _fail(connection, which, error, {"most": EXPIRED_AT_ONCE})


def _fail(
    connection: Connection, which: str, error: str, values: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Fails the queued requests `which` with this error, both given as SQL; returns their ids.

    `is true` keeps Postgres from using the index of the status, in which it would read all queued requests for each id.
    """
    failed = text(f"""
        update requests /* fail */ set status = 'failed', finished_at = clock_timestamp(), error = {error}
        where (status = 'queued') is true and {which} returning id
    """)  # noqa: S608  # constants
    return list(connection.scalars(failed, values))


def recently_cancelled_or_failed(connection: Connection, window_s: float) -> list[str]:
    """Returns the ids of requests that were cancelled or failed within the last `window_s`; policies then drop them.

    Leaves out those that `expire_deadlines` failed: the planner that called it has their ids.
    """
    rows = connection.execute(
        text("""
            select id from requests where status in ('cancelled', 'failed')
                and finished_at > statement_timestamp() - make_interval(secs => :window_s)
                and error->>'code' is distinct from 'deadline_exceeded'
        """),
        {"window_s": window_s},
    )
    return [row.id for row in rows]

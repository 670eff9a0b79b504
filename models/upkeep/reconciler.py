"""Recovers from expired leases, lost messages, unreachable workers and missing predictors; enforces deadlines."""

from collections.abc import Collection

from sqlalchemy import Connection

from models.leasing.requeue import LostBatch, UnfinishedBatch, blamed, requeue
from models.sql import text

# Newest answers that give the applications' mean lengths when no predictor works. More answers cover rarer applications
# and react later when lengths change; not tuned.
ANSWERS_FOR_MEANS = 2000


def lose_expired_batches(connection: Connection, lease_s: float, max_attempts: int) -> list[str]:
    """Mark batches as lost whose lease expired or whose worker is gone; returns the ids of their unfinished requests.

    A worker is gone if it deregistered or its last heartbeat is older than `lease_s`; then all its batches are lost at
    once, whenever it took them. The requests that it was serving are suspects: one may have killed it. A lease that a
    live worker lets expire is no failure: the worker never began that batch, or no longer holds the lease.
    """
    rows = connection.execute(
        text("""
            with lost as (
                select b.id, b.status = 'running' and w.gone as taken from batches b
                join lateral (
                    select coalesce(bool_and(stopped_at is not null or heartbeat_at
                        < statement_timestamp() - make_interval(secs => :lease_s)), true) as gone
                    from workers where name = b.worker
                ) w on true
                where b.status in ('assigned', 'running')
                    and (w.gone or b.status = 'running' and b.lease_until < statement_timestamp())
                order by b.id for update of b
            )
            update batches b set status = 'lost', finished_at = clock_timestamp(), lease_until = null
            from lost where b.id = lost.id
            returning b.id, b.worker, b.joins, lost.taken, b.started_at is not null as started
        """),
        {"lease_s": lease_s},
    )
    return requeue(connection, blamed(LostBatch(**row._mapping) for row in rows), max_attempts)


def withdraw_untaken_batches(connection: Connection, resend_s: float, most_sends: int, max_attempts: int) -> list[str]:
    """Take back batches that were sent `most_sends` times and never taken; returns the workers that took none.

    Such a worker reaches the database but not its queue; a worker that began a batch lately is only slow. It gets no
    batch until it has taken a message; the batches that it has not taken are queued again without counting as attempts.
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
    if not names:
        return []
    rows = connection.execute(
        text("""
            with untaken as (
                select id from batches where status = 'assigned' and worker = any(cast(:names as text[]))
                order by id for update
            )
            update batches b set status = 'lost', finished_at = clock_timestamp() from untaken u where b.id = u.id
            returning b.id
        """),
        {"names": names},
    )
    requeue(connection, [UnfinishedBatch(row.id) for row in rows], max_attempts)
    return names


def workers_to_probe(connection: Connection, alive_s: float) -> list[str]:
    """Return the names of live workers that get no batch until they have taken a message."""
    rows = connection.execute(
        text("""
            select name from workers where not_consuming_since is not null and stopped_at is null
                and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s) order by name
        """),
        {"alive_s": alive_s},
    )
    return [row.name for row in rows]


def batches_to_resend(connection: Connection, resend_s: float, on_time_s: float) -> list[tuple[int, str]]:
    """Return batches sent over `resend_s` ago and never taken, as (batch id, worker's name); marks them as sent.

    A message counts only if its worker's heartbeat is at most `on_time_s` old: a starved process takes it late.
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
    """Predict requests left unpredicted for `grace_s` by their application's recent mean; returns how many.

    Without answers the prediction is the limit, as the upper quantile always is.
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
                for update skip locked
            )
            update requests r set
                predicted_tokens = least(r.limit_tokens, greatest(1, coalesce(m.mean, r.limit_tokens))),
                predicted_upper_tokens = r.limit_tokens,
                predictor_version = case when m.mean is null then 'limit' else 'application mean' end
            from unpredicted u left join means m using (tenant, application)
            where r.id = u.id
        """),
        {"grace_s": grace_s, "answers": ANSWERS_FOR_MEANS},
    ).rowcount


def fail_too_large(
    connection: Connection, model: str, largest_tokens: int, among: Collection[str] | None = None
) -> list[str]:
    """Fail queued requests (all, or of these ids) that the model's largest worker cannot hold; returns their ids."""
    which = "id = any(cast(:ids as text[])) and" if among is not None else ""
    rows = connection.execute(
        text(f"""
            update requests set status = 'failed', finished_at = clock_timestamp(),
                error = case when outgrew_tokens >= :largest_tokens
                    then jsonb_build_object('code', 'out_of_memory', 'message',
                        'The request alone ran out of memory on the largest worker, whose key-value cache holds '
                        || :largest_tokens || ' tokens: ' || prompt_tokens || ' of its prompt and '
                        || cardinality(generated_ids) || ' of its answer.')
                    else jsonb_build_object('code', 'context_length_exceeded', 'message',
                        'The prompt has ' || prompt_tokens || ' tokens, but the key-value cache of the largest worker '
                        || 'holds ' || :largest_tokens || ' with the answer.') end
            where {which} status = 'queued' and coalesce(base, model) = :model
                and (prompt_tokens + cardinality(generated_ids) >= :largest_tokens or outgrew_tokens >= :largest_tokens)
            returning id
        """),  # noqa: S608  # one of two constants
        {"model": model, "largest_tokens": largest_tokens, **({} if among is None else {"ids": list(among)})},
    )
    return [row.id for row in rows]


def fail_unschedulable(connection: Connection, request_id: str) -> None:
    """Fail a request for which the scheduling policy itself raises an error."""
    connection.execute(
        text("""
            update requests set status = 'failed', finished_at = clock_timestamp(),
                error = jsonb_build_object('code', 'unschedulable', 'message',
                    'The scheduling policy fails with this request; it was set aside, and the error is logged.')
            where id = :id and status = 'queued'
        """),
        {"id": request_id},
    )


def expire_deadlines(connection: Connection) -> int:
    """Fail queued requests whose deadline has passed, with the error `deadline_exceeded`; returns how many."""
    return connection.execute(
        text("""
            update requests set status = 'failed', finished_at = clock_timestamp(),
                error = jsonb_build_object('code', 'deadline_exceeded', 'message',
                    'The deadline passed while the request waited.')
            where status = 'queued' and deadline_at < statement_timestamp()
        """)
    ).rowcount


def recently_cancelled_or_failed(connection: Connection, window_s: float) -> list[str]:
    """Return the ids of requests that were cancelled or failed within the last `window_s`; policies then drop them."""
    rows = connection.execute(
        text("""
            select id from requests where status in ('cancelled', 'failed')
                and finished_at > statement_timestamp() - make_interval(secs => :window_s)
        """),
        {"window_s": window_s},
    )
    return [row.id for row in rows]

"""What keeps the service moving when something is lost: leases, messages, predictors; and what deadlines end."""

from sqlalchemy import Connection, text

from models.requeue import Leftover, requeue


def lose_expired(connection: Connection, lease_s: float, max_attempts: int) -> list[str]:
    """Give up batches whose lease ran out or whose worker is gone; the ids of requests that go back or fail.

    A batch that its worker had taken counts as an attempt: it may be what the worker died of.
    """
    rows = connection.execute(
        text("""
            with gone as (
                select b.id, b.status = 'running' as taken from batches b left join workers w on w.name = b.worker
                where b.status = 'running' and b.lease_until < statement_timestamp()
                    or b.status = 'assigned' and (w.name is null or w.stopped_at is not null
                        or w.heartbeat_at < statement_timestamp() - make_interval(secs => :lease_s))
                order by b.id for update of b
            )
            update batches b set status = 'lost', finished_at = clock_timestamp(), lease_until = null
            from gone where b.id = gone.id
            returning b.id, gone.taken
        """),
        {"lease_s": lease_s},
    )
    return requeue(connection, [Leftover(row.id, counts_as_attempt=row.taken) for row in rows], max_attempts)


def unstarted(connection: Connection, resend_s: float) -> list[tuple[int, str]]:
    """Batches, with their workers, whose message was sent `resend_s` ago and not taken; marks them as sent now."""
    rows = connection.execute(
        text("""
            update batches set sent_at = clock_timestamp()
            where status = 'assigned' and sent_at < statement_timestamp() - make_interval(secs => :resend_s)
            returning id, worker
        """),
        {"resend_s": resend_s},
    )
    return sorted((row.id, row.worker) for row in rows)


def predict_without_predictor(connection: Connection, grace_s: float) -> int:
    """Give requests that nobody predicted for `grace_s` their application's recent mean, else their limit; how many."""
    return connection.execute(
        text("""
            with recent as (
                select application, output_tokens from requests
                where finished_at is not null and status = 'completed' order by finished_at desc limit 2000
            ), means as (
                select application, ceil(avg(output_tokens))::int as mean from recent group by application
            ), unpredicted as (
                select id, application from requests
                where status = 'queued' and predicted_tokens is null
                    and arrived_at < statement_timestamp() - make_interval(secs => :grace_s)
                for update skip locked
            )
            update requests r set
                predicted_tokens = least(r.limit_tokens, greatest(1, coalesce(m.mean, r.limit_tokens))),
                predicted_upper_tokens = r.limit_tokens,
                predictor_version = case when m.mean is null then 'limit' else 'application mean' end
            from unpredicted u left join means m using (application)
            where r.id = u.id
        """),
        {"grace_s": grace_s},
    ).rowcount


def fail_too_large(connection: Connection, request_id: str) -> None:
    """End a request that ran out of memory alone, on a worker than which none has more."""
    connection.execute(
        text("""
            update requests set status = 'failed', finished_at = clock_timestamp(),
                error = jsonb_build_object('code', 'out_of_memory', 'message',
                    'The request alone needs more memory for its key-value cache than any worker has.')
            where id = :id and status = 'queued'
        """),
        {"id": request_id},
    )


def expire_deadlines(connection: Connection) -> int:
    """End waiting requests whose deadline has passed, with a clear status; how many."""
    return connection.execute(
        text("""
            update requests set status = 'failed', finished_at = clock_timestamp(),
                error = jsonb_build_object('code', 'deadline_exceeded', 'message',
                    'The deadline passed while the request waited.')
            where status = 'queued' and deadline_at < statement_timestamp()
        """)
    ).rowcount


def lately_gone(connection: Connection, window_s: float) -> list[str]:
    """Requests that were cancelled or failed within the last `window_s`: a policy may still hold them."""
    rows = connection.execute(
        text("""
            select id from requests where status in ('cancelled', 'failed')
                and finished_at > statement_timestamp() - make_interval(secs => :window_s)
        """),
        {"window_s": window_s},
    )
    return [row.id for row in rows]

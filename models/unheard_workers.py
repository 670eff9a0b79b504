"""Workers that renew their heartbeat and take no batch that they are sent, perhaps because they reach another broker.

Their batches go back to the queue, they are given nothing for a while, and they end themselves, so that a supervisor
starts them anew.
"""

from sqlalchemy import Connection, text

from models.requeue import UnfinishedBatch, requeue

# Messages sent again without effect until a batch is taken back: 8 to 10 s with the default MAGNUS_RESEND_S. One or two
# may be lost with a broker that restarts. More delays the requests, which must run elsewhere within 15 s.
MOST_RESENDS = 3
# For so long such a worker is given nothing; then it is tried with a batch again, which costs its requests 8 s. Longer
# than a process takes to start and to reconnect. Not tuned.
WITHHELD_S = 20.0


def take_back(connection: Connection, resend_s: float, max_attempts: int) -> list[str]:
    """Queue the requests of batches again that no worker took; returns the workers, which get nothing for WITHHELD_S.

    A worker that has begun another batch since is only slow. It is no failed attempt of the requests.
    """
    rows = connection.execute(
        text("""
            with unheard as (
                select id, worker from batches b
                where status = 'assigned' and resends >= :resends
                    and sent_at < statement_timestamp() - make_interval(secs => :resend_s)
                    and not exists (
                        select from batches o where o.worker = b.worker and o.started_at > b.assigned_at
                            and o.status in ('running', 'finished', 'out_of_memory')
                    )
                order by id for update
            ), withheld as (
                update workers set withheld_until = clock_timestamp() + make_interval(secs => :withheld_s),
                    withheld_reason = 'takes no batch that it is sent: it may reach another broker, or none'
                where name in (select worker from unheard)
                    and withheld_reason is distinct from 'stops'
            )
            update batches b set status = 'lost', finished_at = clock_timestamp(), lease_until = null
            from unheard u where b.id = u.id
            returning b.id, b.worker
        """),
        {"resends": MOST_RESENDS, "resend_s": resend_s, "withheld_s": WITHHELD_S},
    ).all()
    requeue(connection, [UnfinishedBatch(row.id) for row in rows], max_attempts)
    return sorted({row.worker for row in rows})

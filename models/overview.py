"""What the operator looks at first: where requests are, how answers came out, what each worker does."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class Standing:
    """Requests by where they are, at one instant of the database's clock."""

    now: datetime
    unpredicted: int  # wait for a length prediction
    unplanned: int  # predicted, not yet in the planner's waiting room
    waiting: int  # in the planner's waiting room
    assigned: int  # in a batch that its worker has not started
    running: int  # in any open batch, started or not
    oldest_s: float | None
    finished_minute: int
    tokens_minute: int
    workers_alive: int

    @property
    def queued(self) -> int:
        """Requests that wait, wherever."""
        return self.unpredicted + self.unplanned + self.waiting


def standing(session: Session, worker_alive_s: float) -> Standing:
    """Counted through the partial indexes of open requests, so old answers cost nothing."""
    row = session.execute(
        text("""
            with open as (
                select
                    count(*) filter (where r.status = 'queued' and r.predicted_tokens is null) as unpredicted,
                    count(*) filter (where r.status = 'queued' and r.predicted_tokens is not null
                        and r.planner_epoch = 0) as unplanned,
                    count(*) filter (where r.status = 'queued' and r.predicted_tokens is not null
                        and r.planner_epoch > 0) as waiting,
                    count(*) filter (where r.status = 'in_progress' and b.status = 'assigned') as assigned,
                    count(*) filter (where r.status = 'in_progress') as running,
                    min(r.arrived_at) filter (where r.status = 'queued') as oldest
                from requests r left join batches b on b.id = r.batch_id and b.status = 'assigned'
                where r.status in ('queued', 'in_progress')
            ), minute as (
                select count(*) as finished, coalesce(sum(output_tokens), 0) as tokens from requests
                where finished_at > clock_timestamp() - interval '60 s' and status in ('completed', 'incomplete')
            )
            select clock_timestamp() as now, unpredicted, unplanned, waiting, assigned, running,
                extract(epoch from clock_timestamp() - oldest)::float8 as oldest_s,
                minute.finished as finished_minute, minute.tokens as tokens_minute,
                (select count(*) from workers where stopped_at is null
                    and heartbeat_at > clock_timestamp() - make_interval(secs => :alive_s)) as workers_alive
            from open, minute
        """),
        {"alive_s": worker_alive_s},
    ).one()
    return Standing(**row._mapping)

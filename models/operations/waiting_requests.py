"""What waits, for operators: the requests at the front of the queue by id, and whether planning is paused."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from models.planning import planner_state
from models.sql import text


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued request; lengths in tokens, `length` with what earlier slices generated."""

    id: str
    tenant: str
    application: str
    model: str
    length: int
    predicted_tokens: int
    priority: int
    waited_s: float


def waiting_requests(session: Session, ids: Collection[str]) -> dict[str, QueuedJob]:
    """Those of these requests that still wait, by id."""
    rows = session.execute(
        text("""
            select id, tenant, application, model, prompt_tokens + cardinality(generated_ids) as length,
                greatest(1, least(coalesce(predicted_tokens, limit_tokens), limit_tokens) - cardinality(generated_ids))
                    as predicted_tokens,
                priority, extract(epoch from clock_timestamp() - arrived_at)::float8 as waited_s
            from requests where id = any(cast(:ids as text[])) and status in ('queued')
        """),
        {"ids": list(ids)},
    )
    return {row.id: QueuedJob(**row._mapping) for row in rows}


def paused_since(session: Session) -> datetime | None:
    """Since when planning is paused; None: it is not."""
    row = session.execute(
        text("select updated_at from service_state where name = 'pause' and (value->>'paused')::bool")
    ).one_or_none()
    return row.updated_at if row else None


def set_paused(session: Session, paused: bool) -> None:
    """Have the planner assign nothing from its next step on, or assign again."""
    planner_state.write_service_state(session.connection(), "pause", {"paused": paused})
    session.commit()

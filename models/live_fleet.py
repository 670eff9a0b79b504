"""What the planner sees of the fleet: live workers, the batches that they hold, how ended ones ended."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from models.tables import BatchStatus


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that was heard of lately; `curves` is what it measured of itself when it started."""

    name: str
    model: str
    theta_bytes: int
    delta_bytes: int
    curves: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that is assigned or running; `request_ids` are those of its requests that have not ended."""

    id: int
    worker: str
    joins: bool
    estimated_s: float
    started_at: float | None
    progress_tokens: int
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a batch ended, and how long serving it took if it finished."""

    status: BatchStatus
    serving_s: float | None


def live_workers(connection: Connection, alive_s: float) -> list[LiveWorker]:
    """Workers that were heard of within `alive_s` and did not say goodbye, by name."""
    rows = connection.execute(
        text("""
            select name, model, theta_bytes, delta_bytes, curves from workers
            where stopped_at is null and heartbeat_at > statement_timestamp() - make_interval(secs => :alive_s)
            order by name
        """),
        {"alive_s": alive_s},
    )
    return [LiveWorker(*row) for row in rows]


def set_curves(connection: Connection, worker: str, curves: dict[str, Any]) -> bool:
    """Replace what a worker measured of itself by a better profile; False if no such worker ever announced itself."""
    statement = text("update workers set curves = :curves where name = :name returning name")
    bound = statement.bindparams(bindparam("curves", type_=JSONB))
    return connection.execute(bound, {"curves": curves, "name": worker}).one_or_none() is not None


def open_batches(connection: Connection) -> list[OpenBatch]:
    """Every batch that is assigned or running, in the order in which they were assigned."""
    rows = connection.execute(
        text("""
            select b.id, b.worker, b.joins, b.estimated_s, extract(epoch from b.started_at)::float8 as started_at,
                b.progress_tokens,
                array(select r.id from requests r where r.batch_id = b.id and r.status = 'in_progress') as request_ids
            from batches b where b.status in ('assigned', 'running') order by b.id
        """)
    )
    return [OpenBatch(**{**row._mapping, "request_ids": tuple(row.request_ids)}) for row in rows]


def endings(connection: Connection, batch_ids: Collection[int]) -> dict[int, Ending]:
    """How these batches stand or ended."""
    rows = connection.execute(
        text("select id, status, serving_s from batches where id = any(cast(:ids as bigint[]))"),
        {"ids": list(batch_ids)},
    )
    return {row.id: Ending(BatchStatus(row.status), row.serving_s) for row in rows}

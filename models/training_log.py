"""The trainer's queries: the log of outcomes and batches, and the versions that were published from it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

TRAINER_LOCK = 0x74726169  # "trai"


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """An answered request as the length predictor learns from it; `at` is when it ended, seconds since the epoch."""

    id: str
    application: str
    instructions: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int
    predicted_tokens: int | None
    predicted_upper_tokens: int | None
    output_tokens: int
    cut_off: bool
    at: float


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A served batch as the serving time estimator learns from it."""

    worker: str
    model: str
    size: int
    length: int
    generation_length: int
    serving_s: float
    at: float


@dataclass(frozen=True, slots=True)
class Version:
    """The published model in service."""

    version: str
    sha256: bytes
    stored: bytes
    until: float  # the newest outcome that it was fitted on, seconds since the epoch


def lead(connection: Connection) -> bool:
    """Become the only trainer for as long as the connection lives; False while another is."""
    return bool(connection.execute(text("select pg_try_advisory_lock(:lock)"), {"lock": TRAINER_LOCK}).scalar_one())


def now(connection: Connection) -> float:
    """The database's clock, seconds since the epoch."""
    return float(connection.execute(text("select extract(epoch from clock_timestamp())::float8")).scalar_one())


def finished_requests(
    connection: Connection, limit: int, max_age_s: float, after: float = 0.0, known_ids: Collection[str] = ()
) -> list[FinishedRequest]:
    """The newest answered requests that ended later than `after` and are not among `known_ids`, oldest first.

    At most `limit` of them, and none older than `max_age_s`; `after` is in seconds since the epoch.
    """
    rows = connection.execute(
        text("""
            select id, application, instructions, input, input_tokens, prompt_tokens, limit_tokens, predicted_tokens,
                predicted_upper_tokens, output_tokens, status <> 'completed' as cut_off,
                extract(epoch from finished_at)::float8 as at
            from requests
            where finished_at > statement_timestamp() - make_interval(secs => :max_age_s)
                and finished_at > to_timestamp(:after) and id <> all(cast(:known_ids as text[]))
                and status in ('completed', 'incomplete') and output_tokens > 0
            order by finished_at desc limit :limit
        """),
        {"limit": limit, "max_age_s": max_age_s, "after": after, "known_ids": list(known_ids)},
    )
    return [FinishedRequest(*row) for row in rows][::-1]


def finished_batches(connection: Connection, limit: int, max_age_s: float) -> list[FinishedBatch]:
    """The last batches that ran to completion, oldest first."""
    rows = connection.execute(
        text("""
            select b.worker, w.model, b.size, b.length, b.generation_length, b.serving_s,
                extract(epoch from b.finished_at)::float8 as at
            from batches b join workers w on w.name = b.worker
            where b.finished_at > statement_timestamp() - make_interval(secs => :max_age_s)
                and b.status = 'finished' and not b.joins and b.serving_s > 0 and b.generation_length > 0
            order by b.finished_at desc limit :limit
        """),
        {"limit": limit, "max_age_s": max_age_s},
    )
    return [FinishedBatch(*row) for row in rows][::-1]


def profiles(connection: Connection) -> dict[tuple[str, str], dict[str, Any]]:
    """What workers measured of themselves, by worker and model."""
    rows = connection.execute(text("select name, model, curves from workers where curves is not null"))
    return {(row.name, row.model): row.curves for row in rows}


def active_name(connection: Connection, kind: str) -> str | None:
    """The name of the version in service; cheap enough to ask at every step."""
    row = connection.execute(
        text("select version from model_versions where kind = :kind and active"), {"kind": kind}
    ).one_or_none()
    return row.version if row else None


def active_version(connection: Connection, kind: str) -> Version | None:
    """The version in service with its bytes."""
    row = connection.execute(
        text("""
            select version, sha256, stored, coalesce((data->>'until')::float8, 0) as until
            from model_versions where kind = :kind and active
        """),
        {"kind": kind},
    ).one_or_none()
    return Version(row.version, bytes(row.sha256), bytes(row.stored), row.until) if row else None


def publish(
    connection: Connection,
    kind: str,
    stored: bytes,
    sha256: bytes,
    scores: Mapping[str, Any],
    data: Mapping[str, Any],
) -> str:
    """Put a new version into service in place of the old one; its name."""
    connection.execute(text("update model_versions set active = false where kind = :kind and active"), {"kind": kind})
    row = connection.execute(
        text("""
            with next as (select nextval('model_versions_id_seq') as id)
            insert into model_versions (id, kind, version, active, sha256, stored, scores, data)
            select id, :kind, :kind || '-' || id, true, :sha256, :stored, :scores, :data from next
            returning version
        """).bindparams(bindparam("scores", type_=JSONB), bindparam("data", type_=JSONB)),
        {"kind": kind, "sha256": sha256, "stored": stored, "scores": dict(scores), "data": dict(data)},
    ).one()
    return str(row.version)

"""Published models: publishes a version, puts an earlier one back into service, reads the one in service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session, defer

from models.connections.sql import run, text
from models.service_tables import ModelVersion


class UnknownVersion(Exception):
    """No published model has this name."""


@dataclass(frozen=True, slots=True)
class Version:
    """The published model in service; `sha256` is checked against `stored` before the model is read."""

    version: str
    sha256: bytes
    stored: bytes
    until: float  # seconds since the epoch at which the newest outcome of its training data ended


def publish(
    connection: Connection, kind: str, stored: bytes, sha256: bytes, scores: Mapping[str, Any], data: Mapping[str, Any]
) -> str:
    """Puts a new version of this kind into service in place of the old one; returns its name, `<kind>-<number>`."""
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


def activate(session: Session, version: str) -> None:
    """Puts an earlier version into service in place of its kind's present one; raises UnknownVersion."""
    kind = session.scalar(select(ModelVersion.kind).where(ModelVersion.version == version))
    if kind is None:
        raise UnknownVersion(f"there is no model version {version}; `magnus learned list` shows them all")
    for active, chosen in ((False, ModelVersion.active), (True, ModelVersion.version == version)):
        session.execute(
            update(ModelVersion)
            .where(ModelVersion.kind == kind, chosen)
            .values(active=active, unreadable=None if active else ModelVersion.unreadable)
            .execution_options(synchronize_session=False)
        )


def set_aside(connection: Connection, version: str, reason: str) -> None:
    """Takes an unreadable version out of service and puts the newest readable one of its kind in its place."""
    connection.execute(
        text("update model_versions set active = false, unreadable = :reason where version = :version"),
        {"version": version, "reason": reason},
    )
    connection.execute(
        text("""
            update model_versions set active = true where id = (
                select max(o.id) from model_versions o join model_versions v on v.version = :version
                where o.kind = v.kind and o.unreadable is null
                    and not exists (select from model_versions a where a.kind = v.kind and a.active)
            )
        """),
        {"version": version},
    )


def active_name(connection: Connection, kind: str) -> str | None:
    """Returns the name of the version in service without its bytes, which is cheap enough for every step."""
    rows = run(connection, "select version from model_versions where kind = :kind and active", {"kind": kind})
    return next((row.version for row in rows), None)


def active_version(connection: Connection, kind: str) -> Version | None:
    """Returns the version in service with its bytes."""
    row = connection.execute(
        text("""
            select version, sha256, stored, coalesce((data->>'until')::float8, 0) as until
            from model_versions where kind = :kind and active
        """),
        {"kind": kind},
    ).one_or_none()
    return Version(row.version, bytes(row.sha256), bytes(row.stored), row.until) if row else None


def list_all(session: Session) -> Sequence[ModelVersion]:
    """Returns all versions of all kinds without their bytes, newest first."""
    return session.scalars(
        select(ModelVersion).options(defer(ModelVersion.stored, raiseload=True)).order_by(ModelVersion.id.desc())
    ).all()

"""Operators of the service: their sessions on the dashboard, and the audit of their actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.service_tables import AuditEntry
from models.sql import text


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The owner of a session: a key, the password's digest, or a person of these groups at the provider `issuer`."""

    prefix: str | None
    name: str | None
    tenant: str | None
    scopes: list[str] | None
    password_sha256: bytes | None
    person: str | None
    issuer: str | None
    person_groups: list[str] | None


def begin_session(
    session: Session,
    sha256: bytes,
    lasts_s: float,
    *,
    key_id: int | None = None,
    password_sha256: bytes | None = None,
    person: str | None = None,
    issuer: str | None = None,
    person_groups: Sequence[str] | None = None,
) -> None:
    """Stores a session under the digest of its cookie, and deletes expired sessions."""
    session.execute(text("delete from operator_sessions where expires_at < statement_timestamp()"))
    session.execute(
        text("""
            insert into operator_sessions (sha256, key_id, password_sha256, person, issuer, person_groups, expires_at)
            values (:sha256, :key_id, :password_sha256, :person, :issuer, :person_groups,
                clock_timestamp() + make_interval(secs => :lasts_s))
        """),
        {
            "sha256": sha256,
            "key_id": key_id,
            "password_sha256": password_sha256,
            "person": person,
            "issuer": issuer,
            "person_groups": person_groups,
            "lasts_s": lasts_s,
        },
    )
    session.commit()


def find_session(session: Session, sha256: bytes) -> SignedIn | None:
    """Returns the owner of a session, or None if it is unknown or expired, or if its key is revoked or expired."""
    row = session.execute(
        text("""
            select k.prefix, k.name, k.tenant, k.scopes, s.password_sha256, s.person, s.issuer, s.person_groups
            from operator_sessions s left join api_keys k on k.id = s.key_id and k.revoked_at is null
                and (k.expires_at is null or k.expires_at > statement_timestamp())
            where s.sha256 = :sha256 and s.expires_at > statement_timestamp() and (s.key_id is null or k.id is not null)
        """),
        {"sha256": sha256},
    ).one_or_none()
    return None if row is None else SignedIn(**row._mapping)


def end_session(session: Session, sha256: bytes) -> None:
    """Deletes a session."""
    session.execute(text("delete from operator_sessions where sha256 = :sha256"), {"sha256": sha256})
    session.commit()


def record_action(
    session: Session, actor: str, action: str, target: str, details: Mapping[str, Any] | None = None
) -> None:
    """Records that `actor` does this now; called before each action, so that no action lacks its entry."""
    session.add(AuditEntry(actor=actor, action=action, target=target, details=dict(details or {})))
    session.commit()


def audit_entries(session: Session, limit: int, before: int | None = None) -> Sequence[AuditEntry]:
    """Returns the newest entries of the audit, or the newest that are older than the entry `before`."""
    listed = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    return session.scalars(listed if before is None else listed.where(AuditEntry.id < before)).all()

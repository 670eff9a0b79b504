"""Operators of the service: their sessions on the dashboard, and the audit of their actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.orm import Session

from models.connections.sql import text
from models.service_tables import AuditEntry, OperatorSession
from models.stored_values import to_json


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The owner of a session: an API key, the password (by its digest), or a person at the provider `issuer`."""

    prefix: str | None
    name: str | None
    tenant: str | None
    scopes: list[str] | None
    password_sha256: bytes | None
    person: str | None
    issuer: str | None
    person_groups: list[str] | None


def begin_session(session: Session, sha256: bytes, lasts_s: float, **owner: Any) -> None:
    """Stores a session under the digest of its cookie, and deletes expired ones.

    `owner` has the columns of `OperatorSession` that name the session's owner: a key, the password or a person.
    """
    session.execute(text("delete from operator_sessions where expires_at < statement_timestamp()"))
    expires_at = func.clock_timestamp() + timedelta(seconds=lasts_s)
    session.add(OperatorSession(sha256=sha256, expires_at=expires_at, **owner))
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
    """Records that `actor` does this now; to be called before each action, so that no action lacks its entry."""
    session.add(AuditEntry(actor=actor, action=action, target=target, details=dict(details or {})))
    session.commit()


def record_if_written(connection: Connection, actor: str, action: str, target: str, details: Mapping[str, Any]) -> None:
    """Records that `actor` does this in the connection's transaction, if the transaction has written anything."""
    connection.execute(
        text("""
            insert into audit_entries (actor, action, target, details)
            select :actor, :action, :target, cast(:details as jsonb) where pg_current_xact_id_if_assigned() is not null
        """),
        {"actor": actor, "action": action, "target": target, "details": to_json(details)},
    )


def audit_entries(session: Session, limit: int, before: int | None = None) -> Sequence[AuditEntry]:
    """Returns the newest entries of the audit, newest first, or the newest ones that are older than entry `before`."""
    listed = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    return session.scalars(listed if before is None else listed.where(AuditEntry.id < before)).all()

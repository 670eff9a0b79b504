"""What operators did: written before each action, so that no action is without its entry."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.operations.operation_tables import AuditEntry


def write(session: Session, actor: str, action: str, target: str, details: Mapping[str, Any] | None = None) -> None:
    """Record that `actor` does this now."""
    session.add(AuditEntry(actor=actor, action=action, target=target, details=dict(details or {})))
    session.commit()


def entries(session: Session, limit: int, before: int | None = None) -> Sequence[AuditEntry]:
    """The newest entries, those older than the entry `before`."""
    listed = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    return session.scalars(listed if before is None else listed.where(AuditEntry.id < before)).all()

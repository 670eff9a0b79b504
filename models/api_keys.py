"""API keys: a key is shown once, when it is made; only its SHA-256 is kept."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from models.tables import ApiKey

PREFIX = "magnus-"
FIND = text("select id, tenant from api_keys where sha256 = :sha256 and revoked_at is null")
SHOWN = len(PREFIX) + 6  # characters kept readable, to recognise a key in lists


def create(session: Session, *, name: str, tenant: str) -> tuple[ApiKey, str]:
    """Store a new key of a tenant; the second value is the key itself, which nobody can read again."""
    key = PREFIX + secrets.token_urlsafe(32)
    row = ApiKey(name=name, tenant=tenant, prefix=key[:SHOWN], sha256=digest(key))
    session.add(row)
    session.flush()
    return row, key


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key it is."""

    key_id: int
    tenant: str


def find(session: Session, key: str) -> Caller | None:
    """The caller with this key, if it is known and not revoked."""
    row = session.connection().execute(FIND, {"sha256": digest(key)}).one_or_none()
    return Caller(*row) if row else None


def revoke(session: Session, prefix: str) -> int:
    """Revoke the keys that begin with these characters; how many there were."""
    revoked = session.execute(
        update(ApiKey)
        .where(ApiKey.prefix == prefix[:SHOWN], ApiKey.revoked_at.is_(None))
        .values(revoked_at=text("clock_timestamp()"))
        .returning(ApiKey.id)
    )
    return len(revoked.all())


def every(session: Session) -> Sequence[ApiKey]:
    """All keys, revoked ones too, oldest first."""
    return session.scalars(select(ApiKey).order_by(ApiKey.id)).all()


def digest(key: str) -> bytes:
    """What is kept of a key: 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(key.encode()).digest()

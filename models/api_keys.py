"""API keys: create, find, revoke and list. A key is shown once, when it is created; only its SHA-256 is stored."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from models.tables import ApiKey

PREFIX = "magnus-"  # lets people and secret scanners recognise a key of this service
# How many first characters of a key are stored readable, to tell keys apart in lists. Six random ones have 64^6 values,
# so two keys of a list hardly ever share them, and the 37 that stay secret are far too many to guess.
READABLE_CHARACTERS = len(PREFIX) + 6
FIND = text("select id, tenant from api_keys where sha256 = :sha256 and revoked_at is null")


def create(session: Session, *, name: str, tenant: str) -> tuple[ApiKey, str]:
    """Store a new key of a tenant; returns its row and the key itself, which cannot be read again."""
    key = PREFIX + secrets.token_urlsafe(32)
    row = ApiKey(name=name, tenant=tenant, prefix=key[:READABLE_CHARACTERS], sha256=digest(key))
    session.add(row)
    session.flush()
    return row, key


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that a key belongs to."""

    key_id: int
    tenant: str


def find(session: Session, key: str) -> Caller | None:
    """The caller with this key; None if the key is unknown or revoked."""
    row = session.connection().execute(FIND, {"sha256": digest(key)}).one_or_none()
    return Caller(*row) if row else None


def revoke(session: Session, prefix: str) -> int:
    """Revoke the keys whose first READABLE_CHARACTERS are those of `prefix`; returns how many were revoked."""
    revoked = session.execute(
        update(ApiKey)
        .where(ApiKey.prefix == prefix[:READABLE_CHARACTERS], ApiKey.revoked_at.is_(None))
        .values(revoked_at=text("clock_timestamp()"))
        .returning(ApiKey.id)
    )
    return len(revoked.all())


def list_all(session: Session) -> Sequence[ApiKey]:
    """All keys, revoked ones too, oldest first."""
    return session.scalars(select(ApiKey).order_by(ApiKey.id)).all()


def digest(key: str) -> bytes:
    """The SHA-256 that is stored of a key; a key has 256 random bits, so that it needs no salt and no slow hash."""
    return hashlib.sha256(key.encode()).digest()

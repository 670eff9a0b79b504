"""API keys and what they may do. A key is shown once, when it is created; only its SHA-256 is stored."""

import enum
import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from models.sql import text
from models.tables import ApiKey
from models.tenants.tenant_limits import NO_LIMITS, TenantLimits


class Scope(enum.StrEnum):
    """submit: make and change what is the tenant's; read: see it; operate: see what is of the whole service.

    On the dashboard, where pages need `operate`, submit lets a key act on the whole service, and read see every text.
    """

    submit = "submit"
    read = "read"
    operate = "operate"


DEFAULT_SCOPES = frozenset({Scope.submit, Scope.read})  # what every key could do before there were scopes


PREFIX = "magnus-"  # lets people and secret scanners recognise a key of this service
# How many first characters of a key are stored readable, to tell keys apart in lists. Six random ones have 64^6 values,
# so two keys of a list hardly ever share them, and the 37 that stay secret are far too many to guess.
READABLE_CHARACTERS = len(PREFIX) + 6
FIND_KEY = text("""
    select k.id, k.tenant, k.scopes, t.requests_per_minute, t.queued_requests, t.queued_tokens
    from api_keys k left join tenants t on t.name = k.tenant
    where k.sha256 = :sha256 and k.revoked_at is null and (k.expires_at is null or k.expires_at > statement_timestamp())
""")


def create(
    session: Session,
    *,
    name: str,
    tenant: str,
    scopes: Collection[Scope] = DEFAULT_SCOPES,
    expires: datetime | timedelta | None = None,
) -> tuple[ApiKey, str]:
    """Store a new key of a tenant; returns its row and the key itself, which cannot be read again.

    It is valid until it `expires`: at an instant, or so long after now by the database's clock; None: until revoked.
    """
    key = PREFIX + secrets.token_urlsafe(32)
    row = ApiKey(
        name=name,
        tenant=tenant,
        prefix=key[:READABLE_CHARACTERS],
        sha256=digest(key),
        scopes=sorted(scopes),
        expires_at=func.clock_timestamp() + expires if isinstance(expires, timedelta) else expires,
    )
    session.add(row)
    session.flush()
    return row, key


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that a key belongs to, what the key may do, and its tenant's own limits."""

    key_id: int
    tenant: str
    scopes: frozenset[str] = DEFAULT_SCOPES
    limits: TenantLimits = NO_LIMITS


def find(session: Session, key: str) -> Caller | None:
    """The caller with this key; None if the key is unknown, revoked or expired."""
    row = session.connection().execute(FIND_KEY, {"sha256": digest(key)}).one_or_none()
    if row is None:
        return None
    key_id, tenant, scopes, *limits = row
    return Caller(key_id, tenant, frozenset(scopes), TenantLimits(*limits))


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
    """All keys, revoked and expired ones too, oldest first."""
    return session.scalars(select(ApiKey).order_by(ApiKey.id)).all()


def digest(key: str) -> bytes:
    """The SHA-256 that is stored of a key; a key has 256 random bits, so that it needs no salt and no slow hash."""
    return hashlib.sha256(key.encode()).digest()

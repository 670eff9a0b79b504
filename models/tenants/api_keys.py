"""API keys and what they may do. A key is shown once, when it is created; only its SHA-256 is stored."""

import enum
import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, update
from sqlalchemy.orm import Session

from models.connections.sql import run, text
from models.tenants.tenant_limits import NO_LIMITS, TenantLimits
from models.tenants.tenant_tables import ApiKey


class Scope(enum.StrEnum):
    """A right of a key: to `submit` and change the tenant's own work, to `read` it, or to `operate`.

    With `operate`, a key sees the whole service, on whose pages `submit` then allows actions, and `read` every text.
    """

    submit = "submit"
    read = "read"
    operate = "operate"


DEFAULT_SCOPES = frozenset({Scope.submit, Scope.read})  # enough for a client of the API


PREFIX = "magnus-"  # lets people and secret scanners recognise a key of this service
# This many first characters of a key are stored readable, to distinguish keys in lists. Six random characters have 64^6
# values, so that two keys of a list hardly ever share them; the 37 other characters are far too many to guess.
READABLE_CHARACTERS = len(PREFIX) + 6
FIND_KEY = """
    select k.id, k.tenant, k.scopes, t.requests_per_minute, t.queued_requests, t.queued_tokens,
        t.generated_tokens_per_minute, t.gpu_seconds_per_minute
    from api_keys k left join tenants t on t.name = k.tenant
    where k.sha256 = :sha256 and k.revoked_at is null and (k.expires_at is null or k.expires_at > statement_timestamp())
"""


def create(
    session: Session,
    *,
    name: str,
    tenant: str,
    scopes: Collection[Scope] = DEFAULT_SCOPES,
    expires: datetime | timedelta | None = None,
) -> tuple[ApiKey, str]:
    """Stores a tenant's new key; returns its row and the key. `expires` is an instant, a time from now, or None."""
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
    """The tenant that a key belongs to, with the key's scopes and the tenant's own limits."""

    key_id: int
    tenant: str
    scopes: frozenset[str] = DEFAULT_SCOPES
    limits: TenantLimits = NO_LIMITS


def find(connection: Connection, key: str) -> Caller | None:
    """Returns the caller with this key, or None if the key is unknown, revoked or expired."""
    return find_by_digest(connection, digest(key))


def find_by_digest(connection: Connection, sha256: bytes) -> Caller | None:
    """Returns the caller whose key has this SHA-256, or None if the key is unknown, revoked or expired."""
    for key_id, tenant, scopes, *limits in run(connection, FIND_KEY, {"sha256": sha256}):
        return Caller(key_id, tenant, frozenset(scopes), TenantLimits(*limits))
    return None


def revoke(session: Session, prefix: str) -> int:
    """Revokes the keys that begin with the first READABLE_CHARACTERS of `prefix`; returns their number."""
    revoked = session.execute(
        update(ApiKey)
        .where(ApiKey.prefix == prefix[:READABLE_CHARACTERS], ApiKey.revoked_at.is_(None))
        .values(revoked_at=text("clock_timestamp()"))
        .returning(ApiKey.id)
    )
    return len(revoked.all())


def list_all(session: Session) -> Sequence[ApiKey]:
    """Returns all keys, also revoked and expired ones, oldest first."""
    return session.scalars(select(ApiKey).order_by(ApiKey.id)).all()


def digest(key: str) -> bytes:
    """Returns the SHA-256 of a key. A key has 256 random bits, so that it needs no salt and no slow hash."""
    return hashlib.sha256(key.encode()).digest()

"""What an operator sets for a tenant: limits and weight. Where nothing is set, the service's defaults hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.tables import ApiKey
from models.tenants.tenant_tables import Tenant


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant's own limits; None: the service's default."""

    requests_per_minute: int | None = None
    queued_requests: int | None = None
    queued_tokens: int | None = None


NO_LIMITS = TenantLimits()


def limits_of(session: Session, name: str) -> TenantLimits:
    """A tenant's own limits."""
    stored = session.get(Tenant, name)
    if stored is None:
        return NO_LIMITS
    return TenantLimits(stored.requests_per_minute, stored.queued_requests, stored.queued_tokens)


def change(session: Session, name: str, changes: Mapping[str, float | int | None]) -> Tenant:
    """Set columns of a tenant's row, which is made if there is none; None takes a limit back to the default."""
    values = {**changes, "updated_at": func.clock_timestamp()}
    statement = insert(Tenant).values(name=name, **changes).on_conflict_do_update(index_elements=["name"], set_=values)
    return session.scalars(statement.returning(Tenant), execution_options={"populate_existing": True}).one()


def list_all(session: Session) -> Sequence[Tenant]:
    """Every tenant that has a key or a setting, by name; what was never set has the column's default."""
    stored = {tenant.name: tenant for tenant in session.scalars(select(Tenant))}
    names = {*stored, *session.scalars(select(ApiKey.tenant).distinct())}
    return [stored.get(name) or Tenant(name=name, weight=1.0) for name in sorted(names)]

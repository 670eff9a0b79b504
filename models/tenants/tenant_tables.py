"""The tables of tenants: their settings, their keys and their usage."""

from datetime import date, datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Float, Index, LargeBinary, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.tables import NOW, Base


class Tenant(Base):
    """A tenant's settings; where a column is null, or a tenant has no row, the service's default holds."""

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(primary_key=True)
    weight: Mapped[float] = mapped_column(Float, server_default="1")  # shares of a busy fleet are proportional to it
    requests_per_minute: Mapped[int | None]
    queued_requests: Mapped[int | None]
    queued_tokens: Mapped[int | None] = mapped_column(BigInteger)  # the most prompt tokens of all its queued requests
    priority_requests: Mapped[int | None]  # the most unfinished requests of the service tier `priority`
    generated_tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    gpu_seconds_per_minute: Mapped[int | None]
    # {amount, unit, period}: what it may use in a period, see `budgets`
    budget: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class WorkCharge(Base):
    """Work that counts against a tenant's limit for a minute from `at` on; a trigger of `requests` writes it.

    A request adds its expected work when it is stored, and the difference when its length is predicted, both from its
    arrival on. At its end it adds the difference to the work that it took: what is beyond its charge counts from its
    end on, what it did not use is taken back from its arrival on.
    """

    __tablename__ = "work_charges"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    tenant: Mapped[str]
    at: Mapped[datetime]
    unit: Mapped[str]  # tokens or gpu_s
    amount: Mapped[float]  # below 0 where a request took less than expected

    __table_args__ = (Index("work_charges_of_tenant", "tenant", "at"),)


class ApiKey(Base):
    """A client's API key; only its SHA-256 is stored."""

    __tablename__ = "api_keys"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    tenant: Mapped[str]
    prefix: Mapped[str]  # the key's first characters, by which people recognise it in lists
    sha256: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{submit,read}")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    __table_args__ = (Index("api_keys_of_tenant", "tenant", "id"),)


class UsageEntry(Base):
    """The usage that one transaction of a worker adds to a tenant; `models.tenants.usage.fold` sums the entries by day.

    Entries are only inserted and deleted: if all workers updated one row a day, they would wait for each other.
    """

    __tablename__ = "usage_entries"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    day: Mapped[date]  # the day on which the requests ended, UTC
    tenant: Mapped[str]
    model: Mapped[str]
    requests: Mapped[int]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    answer_tokens: Mapped[int] = mapped_column(BigInteger)
    gpu_s: Mapped[float]
    tier: Mapped[str] = mapped_column(server_default="default")  # as `models.tenants.usage.TIER` computes it
    job_id: Mapped[str | None]  # the bulk job whose lines it counts


class UsageDay(Base):
    """A tenant's usage of a model on one day, without entries that are not folded yet; retention does not delete it."""

    __tablename__ = "usage_days"

    day: Mapped[date] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    answer_tokens: Mapped[int] = mapped_column(BigInteger)
    gpu_s: Mapped[float]
    tier: Mapped[str] = mapped_column(primary_key=True, server_default="default")

    __table_args__ = (Index("usage_days_of_tenant", "tenant", "day"),)


class UsageMonth(Base):
    """The GPU-seconds of a tenant's days in one month, which each step of the planner compares with its budget."""

    __tablename__ = "usage_months"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)  # its first day
    tier: Mapped[str] = mapped_column(primary_key=True)
    gpu_s: Mapped[float]

"""The tables of tenants: what an operator has set for them, and what they have used."""

from datetime import date, datetime

from sqlalchemy import BigInteger, Float
from sqlalchemy.orm import Mapped, mapped_column

from models.tables import NOW, Base


class Tenant(Base):
    """What an operator has set for a tenant; a null, and a tenant without a row, has the service's default."""

    __tablename__ = "tenants"

    name: Mapped[str] = mapped_column(primary_key=True)
    weight: Mapped[float] = mapped_column(Float, server_default="1")  # its share of a busy fleet, beside the others'
    requests_per_minute: Mapped[int | None]
    queued_requests: Mapped[int | None]
    queued_tokens: Mapped[int | None] = mapped_column(BigInteger)  # of the prompts of its queued requests, together
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class UsageEntry(Base):
    """What one transaction of a worker adds to a tenant's usage; `models.tenants.usage.fold` sums entries up by day.

    Entries are only inserted and deleted: many workers that added to one row a day would wait for each other.
    """

    __tablename__ = "usage_entries"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    day: Mapped[date]  # UTC, in which the request ended
    tenant: Mapped[str]
    model: Mapped[str]
    requests: Mapped[int]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    answer_tokens: Mapped[int] = mapped_column(BigInteger)
    gpu_s: Mapped[float]


class UsageDay(Base):
    """What a tenant used of a model on one day, as far as it is folded; retention leaves it alone."""

    __tablename__ = "usage_days"

    day: Mapped[date] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    answer_tokens: Mapped[int] = mapped_column(BigInteger)
    gpu_s: Mapped[float]

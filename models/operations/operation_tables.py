"""The tables of the dashboard: samples of the service, operators' sessions, and what operators did."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from models.tables import NOW, Base


class Sample(Base):
    """The service at one instant, and what ended in the ten seconds before it; a minute keeps them once it is closed.

    Of the answers: `predicted` of them had a prediction, `squared_error` sums its errors, `covered` were no longer than
    its upper quantile; `promised` had an ETA, `eta_error_s` sums its errors, `eta_kept` ended within its interval. Of
    finished batches: `estimated` and their summed absolute errors and serving times.
    """

    __tablename__ = "samples"

    at: Mapped[datetime] = mapped_column(primary_key=True)  # end of the ten seconds
    backlog: Mapped[int]
    in_flight: Mapped[int]
    oldest_s: Mapped[float | None]
    answers: Mapped[int]
    failed: Mapped[int]
    answer_tokens: Mapped[int] = mapped_column(BigInteger)
    response_p50_s: Mapped[float | None]
    response_p95_s: Mapped[float | None]
    response_p99_s: Mapped[float | None]
    predicted: Mapped[int]
    squared_error: Mapped[float]
    covered: Mapped[int]
    tau: Mapped[float | None]
    promised: Mapped[int]
    eta_error_s: Mapped[float]
    eta_kept: Mapped[int]
    estimated: Mapped[int]
    estimate_error_s: Mapped[float]
    served_s: Mapped[float]


class OperatorSession(Base):
    """Somebody who is signed in to the dashboard: by an API key, or by the password, whose digest is then stored."""

    __tablename__ = "operator_sessions"

    sha256: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)  # of the cookie's value
    key_id: Mapped[int | None]  # the session ends with its key
    password_sha256: Mapped[bytes | None] = mapped_column(LargeBinary)  # and with the password
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime]


class AuditEntry(Base):
    """One thing that an operator did; never changed, and deleted by nobody."""

    __tablename__ = "audit_entries"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=NOW)
    actor: Mapped[str]  # the key's first characters, name and tenant, or that it was the password
    action: Mapped[str]
    target: Mapped[str]
    details: Mapped[dict[str, Any]]

    __table_args__ = (Index("audit_entries_by_time", "at"),)

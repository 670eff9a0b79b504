"""Tables about the service itself: leads, heartbeats, learned models, small facts, history, rates, operators."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from models.sql import text
from models.tables import NOW, Base


class Leadership(Base):
    """Who leads among processes of which one works: it renews its lead, and each of its writes checks the number."""

    __tablename__ = "leaderships"

    name: Mapped[str] = mapped_column(primary_key=True)  # planner | trainer
    holder: Mapped[str]  # host and process, for people to read
    fence: Mapped[int] = mapped_column(BigInteger)  # grows with each lead; a write under an old number changes nothing
    expires_at: Mapped[datetime]


class ProcessHeartbeat(Base):
    """A process other than web and workers; alive while its heartbeat is fresh by the database's clock."""

    __tablename__ = "process_heartbeats"

    kind: Mapped[str] = mapped_column(primary_key=True)  # beat | planner | predictor | trainer
    instance: Mapped[str] = mapped_column(primary_key=True)  # host:process id
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=NOW)
    clock_ahead_s: Mapped[float]  # its host's clock minus the database's, at the last heartbeat


class ModelVersion(Base):
    """A published length predictor or serving time estimator; its SHA-256 is checked before it is read."""

    __tablename__ = "model_versions"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]  # length | serving_time
    version: Mapped[str] = mapped_column(unique=True)
    active: Mapped[bool] = mapped_column(server_default="false")
    sha256: Mapped[bytes] = mapped_column(LargeBinary)
    stored: Mapped[bytes] = mapped_column(LargeBinary)
    scores: Mapped[dict[str, Any]]  # of this candidate, of the one it replaced, of the baseline, on the holdout
    data: Mapped[dict[str, Any]]  # range and size of what it was trained on
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    unreadable: Mapped[str | None]  # why it was set aside: the last version that can be read serves instead

    __table_args__ = (Index("model_versions_active", "kind", unique=True, postgresql_where=text("active")),)


class ServiceState(Base):
    """Small facts by name: policy in force, planner's snapshot, accuracy of predictions, the installation's name."""

    __tablename__ = "service_state"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Minute(Base):
    """The figures of one closed minute: the dashboard's history, which outlives the deleted requests."""

    __tablename__ = "minutes"

    minute: Mapped[datetime] = mapped_column(primary_key=True)
    arrived: Mapped[int]
    completed: Mapped[int]
    incomplete: Mapped[int]
    failed: Mapped[int]
    cancelled: Mapped[int]
    response_p50_s: Mapped[float | None]  # of the answers, completed or incomplete
    response_p95_s: Mapped[float | None]
    response_max_s: Mapped[float | None]
    batches: Mapped[int]  # finished ones
    batched: Mapped[int]  # requests in them
    valid_tokens: Mapped[int] = mapped_column(BigInteger)
    pad_tokens: Mapped[int] = mapped_column(BigInteger)
    invalid_tokens: Mapped[int] = mapped_column(BigInteger)
    # of the minute's samples (`models.service_tables.Sample`): the largest backlog, numbers in flight, age
    # and 99th percentile, the newest tau, the sums of the others; null in a minute without samples
    backlog: Mapped[int | None]
    in_flight: Mapped[int | None]
    oldest_s: Mapped[float | None]
    answer_tokens: Mapped[int | None] = mapped_column(BigInteger)
    response_p99_s: Mapped[float | None]
    predicted: Mapped[int | None]
    squared_error: Mapped[float | None]
    covered: Mapped[int | None]
    tau: Mapped[float | None]
    promised: Mapped[int | None]
    eta_error_s: Mapped[float | None]
    eta_kept: Mapped[int | None]
    estimated: Mapped[int | None]
    estimate_error_s: Mapped[float | None]
    served_s: Mapped[float | None]


class RateCount(Base):
    """A tenant's requests in the present window of its rate limit; unlogged, because a crash may forget them."""

    __tablename__ = "rate_counts"

    key_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # the tenant's first key
    window_start: Mapped[datetime]
    requests: Mapped[int]

    __table_args__ = {"prefixes": ["UNLOGGED"]}  # noqa: RUF012  # a mapped class declares no ClassVar here


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

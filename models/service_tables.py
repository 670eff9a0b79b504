"""Tables about the service itself: leaders, heartbeats, learned models, facts by name, history, rates, operators."""

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Index, LargeBinary, Text
from sqlalchemy.orm import Mapped, mapped_column

from models.connections.sql import text
from models.tables import NOW, Base


class Leadership(Base):
    """The leader of processes that work one at a time: it renews its lead, and each of its writes checks `fence`."""

    __tablename__ = "leaderships"

    name: Mapped[str] = mapped_column(primary_key=True)  # planner | trainer
    holder: Mapped[str]  # host and process, as people read them
    fence: Mapped[int] = mapped_column(BigInteger)  # grows with each lead; a write under an old number changes nothing
    expires_at: Mapped[datetime]


class ProcessHeartbeat(Base):
    """A process other than web and workers; alive while its heartbeat is fresh by the database's clock."""

    __tablename__ = "process_heartbeats"

    kind: Mapped[str] = mapped_column(primary_key=True)  # beat | planner | predictor | chores | trainer
    instance: Mapped[str] = mapped_column(primary_key=True)  # host#boot:process id
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=NOW)
    clock_ahead_s: Mapped[float]  # its host's clock minus the database's, at the last heartbeat
    failure: Mapped[str | None]  # why its steps fail; null if they do not


class ModelVersion(Base):
    """A published length predictor or serving time estimator, whose SHA-256 is checked before it is read."""

    __tablename__ = "model_versions"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]  # length | serving_time
    version: Mapped[str] = mapped_column(unique=True)
    active: Mapped[bool] = mapped_column(server_default="false")
    sha256: Mapped[bytes] = mapped_column(LargeBinary)
    stored: Mapped[bytes] = mapped_column(LargeBinary)
    scores: Mapped[dict[str, Any]]  # scores of this model, its predecessor and the baseline on held-out outcomes
    data: Mapped[dict[str, Any]]  # range and size of the training data
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    unreadable: Mapped[str | None]  # why the version was set aside; the newest readable version serves in its place

    __table_args__ = (Index("model_versions_active", "kind", unique=True, postgresql_where=text("active")),)


class ServiceState(Base):
    """Facts by name: the policy in force, the planner's snapshot, the accuracy of predictions, the installation."""

    __tablename__ = "service_state"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Minute(Base):
    """The figures of one closed minute, which the dashboard's history shows after the requests are deleted."""

    __tablename__ = "minutes"

    minute: Mapped[datetime] = mapped_column(primary_key=True)
    arrived: Mapped[int]
    completed: Mapped[int]
    incomplete: Mapped[int]
    failed: Mapped[int]
    cancelled: Mapped[int]
    response_p50_s: Mapped[float | None]  # quantiles over completed and incomplete answers
    response_p95_s: Mapped[float | None]
    response_max_s: Mapped[float | None]
    batches: Mapped[int]  # batches that finished
    batched: Mapped[int]  # requests in these batches
    valid_tokens: Mapped[int] = mapped_column(BigInteger)
    pad_tokens: Mapped[int] = mapped_column(BigInteger)
    invalid_tokens: Mapped[int] = mapped_column(BigInteger)
    # The columns below come from the minute's samples (`Sample`) and are null without any: the maxima of `backlog`,
    # `in_flight`, `oldest_s` and `response_p99_s`, the newest `tau`, and the sums of the others.
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
    """The service at one instant, with the figures of the ten seconds before it.

    Answers: `predicted` counts those with a predicted length, `squared_error` sums the squared errors of these lengths,
    and `covered` counts answers no longer than their upper quantile; `promised` counts those with an interval of their
    ETA, `eta_error_s` sums the errors of these ETAs, and `eta_kept` counts answers within it. Finished batches:
    `estimated` counts those with an estimated serving time, `estimate_error_s` sums the absolute errors of the
    estimates, and `served_s` sums their serving times.
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


class HistogramBucket(Base):
    """A bucket of a histogram of `models.operations.request_histograms`: its requests, and the sum of their values."""

    __tablename__ = "histogram_buckets"

    name: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    tenant_class: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    bucket: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # counted from 0
    requests: Mapped[int] = mapped_column(BigInteger)
    total: Mapped[float]


class OperatorSession(Base):
    """A sign-in to the dashboard: by an API key, by the password (stored as a digest), or at an OpenID provider."""

    __tablename__ = "operator_sessions"

    sha256: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)  # the digest of the cookie's value
    key_id: Mapped[int | None]  # the session ends with its key
    password_sha256: Mapped[bytes | None] = mapped_column(LargeBinary)  # the session ends with the password
    person: Mapped[str | None]  # who signed in at the provider `issuer`, as the audit shows it
    issuer: Mapped[str | None]  # the session ends when MAGNUS_OIDC_ISSUER is another one
    person_groups: Mapped[list[str] | None] = mapped_column(ARRAY(Text))  # the groups that MAGNUS_OPERATOR_ROLES named
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime]


class AuditEntry(Base):
    """One action of an operator; an entry is never changed and never deleted."""

    __tablename__ = "audit_entries"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=NOW)
    actor: Mapped[str]  # an API key by its first characters, name and tenant; the dashboard's password; or a person
    action: Mapped[str]
    target: Mapped[str]
    details: Mapped[dict[str, Any]]

    __table_args__ = (Index("audit_entries_by_time", "at"),)

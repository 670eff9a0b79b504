"""A tenant's limits and weight, which an operator sets, and the counts that are compared with the limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.connections.sql import run, text
from models.tables import PREFERRED_UNFINISHED, RequestStatus, StoredRequest
from models.tenants.tenant_tables import ApiKey, Tenant


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant's own limits; None stands for the service's default."""

    requests_per_minute: int | None = None
    queued_requests: int | None = None
    queued_tokens: int | None = None
    generated_tokens_per_minute: int | None = None
    gpu_seconds_per_minute: int | None = None

    @property
    def of_work(self) -> bool:
        """Whether requests count by their expected work."""
        return self.generated_tokens_per_minute is not None or self.gpu_seconds_per_minute is not None


NO_LIMITS = TenantLimits()


def limits_of(session: Session, name: str) -> TenantLimits:
    """Returns a tenant's own limits."""
    stored = session.get(Tenant, name)
    if stored is None:
        return NO_LIMITS
    return TenantLimits(*(getattr(stored, limit.name) for limit in fields(TenantLimits)))


def change_tenant(session: Session, name: str, changes: Mapping[str, Any]) -> Tenant:
    """Sets columns of a tenant's row, and makes the row if needed; None sets a limit back to the default."""
    values = {**changes, "updated_at": func.clock_timestamp()}
    statement = insert(Tenant).values(name=name, **changes).on_conflict_do_update(index_elements=["name"], set_=values)
    return session.scalars(statement.returning(Tenant), execution_options={"populate_existing": True}).one()


def list_tenants(session: Session) -> Sequence[Tenant]:
    """Returns every tenant that has a key or a setting, ordered by name; without a setting, it has the defaults."""
    stored = {tenant.name: tenant for tenant in session.scalars(select(Tenant))}
    names = {*stored, *session.scalars(select(ApiKey.tenant).distinct())}
    return [stored.get(name) or Tenant(name=name, weight=1.0) for name in sorted(names)]


def check_alone(session: Session, tenant: str, counted: str) -> None:
    """Locks the tenant's limit on `counted` until this session commits, so that calls check it one after another.

    Begins a transaction, also under autocommit; its later statements see what the previous holder of the lock stored.
    """
    if isinstance(session.get_bind(), Engine):  # a session bound to a connection is already in a transaction
        session.connection(execution_options={"isolation_level": "READ COMMITTED"})
    lock = text("select pg_advisory_xact_lock(hashtextextended(:counted, 0))")
    session.execute(lock, {"counted": f"{counted} of {tenant}"})


@dataclass(frozen=True, slots=True)
class TenantBacklog:
    """The number of a tenant's queued requests, their prompts' tokens, and the stored bytes of their texts, as sums."""

    requests: int = 0
    tokens: int = 0
    bytes: int = 0

    def __add__(self, other: "TenantBacklog") -> "TenantBacklog":
        return TenantBacklog(self.requests + other.requests, self.tokens + other.tokens, self.bytes + other.bytes)

    def __sub__(self, other: "TenantBacklog") -> "TenantBacklog":
        return TenantBacklog(self.requests - other.requests, self.tokens - other.tokens, self.bytes - other.bytes)


NOTHING = TenantBacklog()


def read_backlog(session: Session, tenant: str) -> TenantBacklog:
    """Counts a tenant's queued requests through an index, in some 50 ms for 100,000 requests."""
    size = func.pg_column_size(StoredRequest.body) + func.pg_column_size(StoredRequest.input)  # as stored, not read
    sums = [func.coalesce(func.sum(column), 0) for column in (StoredRequest.prompt_tokens, size)]
    counts = select(func.count(), *sums).where(
        StoredRequest.tenant == tenant, StoredRequest.status == RequestStatus.queued
    )
    requests, tokens, size_bytes = session.execute(counts).one()
    return TenantBacklog(requests, int(tokens), int(size_bytes))


def may_prefer(session: Session, tenant: str, most: int) -> bool:
    """Returns whether a tenant may have one more `priority` request; `most` is the quota of a tenant without its own.

    The tenant's other calls of this function wait until this session commits.
    """
    check_alone(session, tenant, "priority requests")
    return has_preference_left(session, tenant, most)


def has_preference_left(session: Session, tenant: str, most: int) -> bool:
    """Returns whether a tenant now has less `priority` requests than its quota, or `most` if it has none of its own."""
    quota = text("select coalesce((select priority_requests from tenants where name = :tenant), :most)")
    unfinished = text(f"select count(*) from requests where tenant = :tenant and {PREFERRED_UNFINISHED}")  # noqa: S608
    values = {"tenant": tenant, "most": most}
    return bool(session.scalar(unfinished, values) < session.scalar(quota, values))


# The GPU-seconds that a generated token of this tenant and model has taken since yesterday, without bulk jobs.
PACE = """
    select sum(gpu_s) / nullif(sum(answer_tokens), 0) as token_gpu_s from usage_days
    where day >= (statement_timestamp() at time zone 'UTC')::date - 1 and tenant = :tenant and model = :model
        and tier <> 'batch'
"""
# A check deletes at most this many expired charges, more than a request adds. After a pause there may be as many as a
# whole queue of requests left, which takes longer than a call may. Not tuned.
EXPIRED_AT_ONCE = 1000
# The charges of the last minute by unit and second; each by itself, a check took 275 ms for 120,000 instead of 50. A
# request fits once the oldest of them no longer count, up to the first whose `newer` charges leave enough; a request
# above the limit fits once nothing counts. Predictions soon replace `assumed` charges, so nobody is told to wait until
# these no longer count.
ROOM_FOR_WORK = text(f"""
    with expired as (
        delete from work_charges where ctid = any(array(
            select ctid from work_charges where tenant = :tenant and at <= statement_timestamp() - interval '1 minute'
            order by at limit {EXPIRED_AT_ONCE}
        ))
    ), recent as (
        select unit, max(at) as at, sum(amount) as amount,
            sum(sum(amount)) over (partition by unit order by max(at) desc) - sum(amount) as newer
        from work_charges where tenant = :tenant and at > statement_timestamp() - interval '1 minute'
        group by unit, date_bin('1 s', at, to_timestamp(0))
    ), assumed as (
        select unit, sum(amount) as amount from requests, lateral (values ('tokens', (charge->>'tokens')::float8),
            ('gpu_s', (charge->>'tokens')::float8 * (charge->>'token_gpu_s')::float8)) as own (unit, amount)
        where tenant = :tenant and status = 'queued' and predicted_tokens is null and (charge->>'assumed')::boolean
            and tier > 'flex' -- as the index is ordered
        group by unit
    ), pace as (
        {PACE}
    ), allowed as (
        select unit, most, asked, token_gpu_s from tenants, pace, lateral (values
            ('tokens', generated_tokens_per_minute, cast(:tokens as float8)),
            ('gpu_s', gpu_seconds_per_minute, coalesce(:tokens * token_gpu_s, 0))) as own (unit, most, asked)
        where name = :tenant and most is not null
    ), left_for_others as (
        select allowed.*, most - least(asked, most) + coalesce(amount, 0) + 1e-6 as others
        from allowed left join assumed using (unit)
    )
    select unit, most, asked, token_gpu_s, round(coalesce(sum(amount), 0)::numeric, 3)::float8 as charged,
        case when sum(amount) > others then
            extract(epoch from min(at) filter (where newer <= others) + interval '1 minute' - statement_timestamp())
        else 0 end::float8 as fits_in_s
    from left_for_others left join recent using (unit) group by unit, most, asked, token_gpu_s, others
""")  # noqa: S608  # a constant
UNITS = {"tokens": "generated tokens", "gpu_s": "GPU-seconds"}


class WorkExceeded(Exception):
    """A tenant's requests of the last minute take too much work for one more; it fits in `fits_in_s` seconds."""

    def __init__(self, unit: str, most: int, charged: float, asked: float, fits_in_s: float) -> None:
        self.most, self.charged, self.asked, self.fits_in_s = most, charged, asked, fits_in_s
        self.unit = UNITS[unit]
        super().__init__(f"{charged} of {most} {self.unit} a minute are charged")


def token_gpu_s(session: Session, tenant: str, model: str) -> float | None:
    """Returns the GPU-seconds of a generated token since yesterday; None before the tenant's first counted answers."""
    seconds: float | None = session.execute(text(PACE), {"tenant": tenant, "model": model}).scalar_one()
    return seconds


def check_work(session: Session, tenant: str, model: str, tokens: int) -> float | None:
    """Checks that a request expected to generate `tokens` is within its tenant's limits; raises WorkExceeded.

    Returns the GPU-seconds of a token, None while they are unknown. The tenant's other calls of this function wait
    until this session commits, which is to store the request.
    """
    check_alone(session, tenant, "expected work")
    rows = session.execute(ROOM_FOR_WORK, {"tenant": tenant, "model": model, "tokens": tokens}).all()
    exceeded = [row for row in rows if row.charged + min(row.asked, row.most) > row.most]
    if exceeded:
        last = max(exceeded, key=lambda row: row.fits_in_s)
        raise WorkExceeded(last.unit, last.most, last.charged, last.asked, last.fits_in_s)
    return rows[0].token_gpu_s if rows else None


COUNT_REQUESTS = """
    insert into rate_counts as old (key_id, window_start, requests)
    select min(id), date_bin(make_interval(secs => :period_s), clock_timestamp(), to_timestamp(0)), :requests
    from api_keys where tenant = :tenant having min(id) is not null
    on conflict (key_id) do update set window_start = excluded.window_start,
        requests = excluded.requests
            + case when old.window_start = excluded.window_start then old.requests else 0 end
    returning requests, extract(epoch from
        window_start + make_interval(secs => :period_s) - clock_timestamp())::float8 as window_left_s
"""


@dataclass(frozen=True, slots=True)
class SharedCount:
    """A tenant's requests in the present window of its rate limit, and the seconds until the window ends."""

    requests: int
    window_left_s: float


class NoKeys(Exception):
    """The tenant has no key any more, because it was removed."""


def count_requests(connection: Connection, tenant: str, requests: int, period_s: int) -> SharedCount:
    """Adds requests to a tenant's count; returns the count in the present window of `period_s` s. Raises NoKeys."""
    rows = run(connection, COUNT_REQUESTS, {"tenant": tenant, "requests": requests, "period_s": period_s})
    if not rows:
        raise NoKeys
    (row,) = rows
    return SharedCount(row.requests, max(0.0, row.window_left_s))

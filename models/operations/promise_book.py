"""The promise book: settles promises once their time is over, sums them up by hour, and says what broke missed ones.

Whether a promise was kept is known when its time is over; what broke it, when its request has ended. A request that its
client cancels before that time, or deletes, or that its engine can never answer, is not counted.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from math import sqrt

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models.bulk.bulk_tables import MODEL_OF_LINES
from models.client_requests import RequestView, read_views, select_views
from models.connections.sql import text
from models.new_requests import REFUSED_BY_ENGINE
from models.planning.queue_position import QueuePlace, place_in_queue
from models.planning.queue_snapshot import read_queue_snapshot
from models.tables import RequestStatus, StoredRequest
from scheduling.request import BACKGROUND_TIERS, TIER_LEVELS

DAY_HOURS, WEEK_HOURS = 24, 168
WITHHELD_HOURS = 2  # a level that was short in this hour or the one before is not promised. Not tuned
BATCHES_WITHHELD_HOURS = WEEK_HOURS  # likewise for bulk jobs, of which two hours rarely have FEWEST
AT_RISK = "response.promise_at_risk"
MOST_WATCHED = 1000  # open promises that are compared with the forecast at once, those that are due first. Not tuned
# With fewer promises a share says nothing: one of 20 that is missed is 5 points.
FEWEST = 20
ERRORS = 2.0  # a share that is this many standard errors below its level is short: by chance 2 % are

# An answer is to blame if it would have come in time with the expected length, at the pace that it had.
SETTLE = text(f"""
    with due as (
        select * from promises where look_at <= statement_timestamp() order by look_at limit :most
        for update skip locked
    ), looked as (
        select due.*, w.*, coalesce(finished_at, statement_timestamp()) as until,
            finished_at is not null or w.id is null as ended,
            w.id is null or coalesce(void_at <= promised_by, false) as withdrawn,
            coalesce(status in ('completed', 'incomplete') and finished_at <= promised_by, false) as kept
        from due left join lateral (
            select id, status, started_at, output_tokens, coalesce(base, model) as served_by, finished_at,
                case when status = 'cancelled' or error->>'code' = 'refused_by_engine' then finished_at end
                    as void_at
            from requests where id = request_id
            union all
            select id, status, in_progress_at, done_tokens, {MODEL_OF_LINES},
                coalesce(completed_at, failed_at, expired_at, cancelled_at), cancelling_at
            from bulk_jobs where id = request_id and request_id like 'batch%' and deleted_at is null
        ) w on true
    ), judged as (
        select *, case
            when kept or withdrawn or not ended then null
            when status in ('failed', 'expired') then 'failed'
            when exists (
                select from batches b where b.status = 'lost' and b.finished_at between sold_at and until
                    and (request_id like 'batch%' or coalesce(b.model = served_by, true))
            ) then 'lost_worker'
            -- in seconds, because an interval times the tokens of a large bulk job may be out of range
            when extract(epoch from until - started_at)::float8 * (1 - tokens / nullif(output_tokens, 0))
                >= extract(epoch from until - promised_by)::float8 then 'longer_answer'
            else 'later_arrivals' end as broke
        from looked
    ), counted as (
        insert into promise_hours as old (hour, tenant, model, tier, probability, sold, kept, lost_worker,
            longer_answer, failed, later_arrivals)
        select date_trunc('hour', promised_by), tenant, coalesce(served_by, ''), tier, probability,
            count(*) filter (where not missed), count(*) filter (where kept),
            count(*) filter (where broke = 'lost_worker'), count(*) filter (where broke = 'longer_answer'),
            count(*) filter (where broke = 'failed'), count(*) filter (where broke = 'later_arrivals')
        from judged where not withdrawn group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
        on conflict (hour, tenant, model, tier, probability) do update set sold = old.sold + excluded.sold,
            kept = old.kept + excluded.kept, lost_worker = old.lost_worker + excluded.lost_worker,
            longer_answer = old.longer_answer + excluded.longer_answer, failed = old.failed + excluded.failed,
            later_arrivals = old.later_arrivals + excluded.later_arrivals
    ), settled as (
        update promises p set missed = not (j.kept or j.withdrawn),
            look_at = case when not ended then statement_timestamp() + (statement_timestamp() - p.sold_at) / 2 end
        from judged j where p.request_id = j.request_id and p.request_id = any(array(select request_id from due))
    )
    select count(*) from due
""")  # noqa: S608  # a constant
SUMS = text("""
    select extract(epoch from hour)::float8 as hour, tier as service_tier, probability, sum(sold)::int as sold,
        sum(kept)::int as kept, sum(lost_worker)::int as lost_worker, sum(longer_answer)::int as longer_answer,
        sum(failed)::int as failed, sum(later_arrivals)::int as later_arrivals
    from promise_hours
    where hour > date_trunc('hour', statement_timestamp()) - make_interval(hours => :hours)
        and (cast(:tenant as text) is null or tenant = :tenant)
    group by 1, 2, 3 order by 1, 2, 3
""")
OF_MODELS = text("""
    select model, probability, sum(sold)::int as sold, sum(kept)::int as kept from promise_hours
    where hour > date_trunc('hour', statement_timestamp()) - make_interval(hours => :hours) and tier = any(:tiers)
    group by 1, 2 having sum(sold) > 0 order by 1, 2
""")
NOW = text("select extract(epoch from statement_timestamp())::float8")
OPEN = text("""
    select request_id from promises
    where look_at > statement_timestamp() and promised_by > statement_timestamp() and not missed and not warned
    order by look_at limit :most
""")
WARN = text("""
    with late as (
        update promises set warned = true where request_id = any(cast(:ids as text[])) and not warned
        returning request_id, tenant
    )
    insert into webhook_deliveries (endpoint_id, event_id, type, object_id)
    select e.id, 'evt_risk_' || substr(request_id, 6), :event, request_id
    from late join webhook_endpoints e using (tenant) where :event = any(e.events)
""")


@dataclass(frozen=True, slots=True)
class PromiseSums:
    """Promises whose time is over, those that were kept, and what broke the others as far as it is known.

    Sums over hours or tiers have None there; sums over levels have the mean probability.
    """

    hour: float | None  # a Unix time
    service_tier: str | None
    probability: float
    sold: int
    kept: int
    lost_worker: int = 0
    longer_answer: int = 0
    failed: int = 0
    later_arrivals: int = 0

    @property
    def kept_share(self) -> float:
        """Returns the share of the promises that were kept."""
        return self.kept / self.sold

    @property
    def error(self) -> float:
        """Returns the standard error of the share if promises are kept with their probability, each by itself."""
        return sqrt(self.probability * (1 - self.probability) / self.sold)

    @property
    def short(self) -> bool:
        """Returns whether fewer promises were kept than by chance."""
        return self.sold >= FEWEST and self.kept_share < self.probability - ERRORS * self.error

    @property
    def unexplained(self) -> int:
        """Returns the number of missed promises whose requests have not ended, or were deleted."""
        return self.sold - self.kept - self.lost_worker - self.longer_answer - self.failed - self.later_arrivals


@dataclass(frozen=True, slots=True)
class PromiseBook:
    """The promises of the last day and week, by level and tier and by level alone, and the week's worst hour.

    That is the hour in which the most promises were missed beyond those that were expected; None if there is none.
    """

    day: list[PromiseSums]
    week: list[PromiseSums]
    worst_hour: PromiseSums | None


def settle(connection: Connection, most: int) -> int:
    """Settles up to `most` promises that are due, and counts them; returns how many it looked at."""
    return int(connection.execute(SETTLE, {"most": most}).scalar_one())


def warn_of_risks(session: Session) -> int:
    """Tells the webhooks of promises whose answers are now expected too late, once for each; returns how many."""
    ids = session.scalars(OPEN, {"most": MOST_WATCHED}).all()
    snapshot = read_queue_snapshot(session) if ids else None
    if snapshot is None:
        return 0
    views = list(read_views(session, select_views().where(StoredRequest.id.in_(ids))))
    late = [view.request.id for view in views if is_at_risk(view, place_in_queue(view, snapshot))]
    if late:
        session.execute(WARN, {"ids": late, "event": AT_RISK})
        session.commit()
    return len(late)


def delete_old(connection: Connection, retention_s: float, limit: int) -> int:
    """Deletes up to `limit` promises, and `limit` sums, that are older than `retention_s`; returns how many."""
    parts = (("promises", "sold_at"), ("promise_hours", "hour"))
    return sum(
        connection.execute(
            text(f"""
                delete from {table} where ctid = any(array(
                    select ctid from {table} where {at} < statement_timestamp() - make_interval(secs => :retention_s)
                    order by {at} limit :limit for update skip locked
                ))
            """),  # noqa: S608  # names above
            {"retention_s": retention_s, "limit": limit},
        ).rowcount
        for table, at in parts
    )


def read_book(session: Session, tenant: str | None) -> PromiseBook:
    """Returns the promise book of a tenant, or of all."""
    values = {"hours": WEEK_HOURS, "tenant": tenant}
    sums = [PromiseSums(**row._mapping) for row in session.execute(SUMS, values)]
    since = session.execute(NOW).scalar_one() - DAY_HOURS * 3600
    last_day = [one for one in sums if one.hour and one.hour > since]
    hours = added(sums, lambda one: (one.hour, None, None))
    worst = max(hours, key=_beyond, default=None)
    return PromiseBook(
        _by_level(last_day), _by_level(sums), worst if worst is not None and _beyond(worst) > 0 else None
    )


def withheld_levels(session: Session, *, background: bool = False) -> dict[str, frozenset[float]]:
    """Returns by model the probabilities at which nothing is promised now, as too few of the latest were kept.

    Times are promised to bulk jobs in the background tiers, and to calls in the others.
    """
    hours = BATCHES_WITHHELD_HOURS if background else WITHHELD_HOURS
    tiers = BACKGROUND_TIERS if background else TIER_LEVELS.keys() - BACKGROUND_TIERS
    short = defaultdict[str, set[float]](set)
    for model, one in of_models(session, hours, tiers):
        if one.short:
            short[model].add(one.probability)
    return {model: frozenset(levels) for model, levels in short.items()}


def of_models(
    session: Session, hours: int = DAY_HOURS, tiers: Collection[str] = TIER_LEVELS.keys()
) -> list[tuple[str, PromiseSums]]:
    """Returns models with all tenants' promises of this hour and those before it, by level."""
    rows = session.execute(OF_MODELS, {"hours": hours, "tiers": list(tiers)})
    return [(row.model, PromiseSums(None, None, row.probability, row.sold, row.kept)) for row in rows]


Group = tuple[float | None, str | None, float | None]


def added(sums: Iterable[PromiseSums], by: Callable[[PromiseSums], Group]) -> list[PromiseSums]:
    """Returns the sums of each group, in the order in which groups come."""
    groups = dict[Group, list[PromiseSums]]()
    for one in sums:
        groups.setdefault(by(one), []).append(one)
    return [_sum(hour, tier, some) for (hour, tier, _), some in groups.items() if sum(one.sold for one in some)]


def _sum(hour: float | None, tier: str | None, some: list[PromiseSums]) -> PromiseSums:
    counts = {name: sum(getattr(one, name) for one in some) for name in COUNTS}
    promised = sum(one.sold * one.probability for one in some)
    return PromiseSums(hour, tier, promised / counts["sold"], **counts)


def _by_level(sums: list[PromiseSums]) -> list[PromiseSums]:
    of_tiers = added(sums, lambda one: (None, one.service_tier, one.probability))
    of_all = added(sums, lambda one: (None, None, one.probability))
    return sorted([*of_all, *of_tiers], key=lambda one: (one.probability, one.service_tier or ""))


def _beyond(one: PromiseSums) -> float:
    return one.sold * one.probability - one.kept


COUNTS = [field.name for field in fields(PromiseSums)][3:]


def is_kept(view: RequestView) -> bool | None:
    """Returns whether a request's promise was kept.

    None without a promise, until it is known, and for a request that was cancelled or that no engine can answer.
    """
    due_at, request = None if view.promise is None else view.promise.promised_by, view.request
    if request.status is RequestStatus.cancelled or (request.error or {}).get("code") == REFUSED_BY_ENGINE:
        return None
    answered = request.status is not RequestStatus.failed
    return in_time(due_at, request.finished_at, view.now, answered=answered)


def in_time(due_at: datetime | None, ended_at: datetime | None, now: datetime, *, answered: bool) -> bool | None:
    """Returns whether work that has or has not ended by `now` was done by `due_at`; None until it is known."""
    if due_at is None or (ended_at is None and now <= due_at):
        return None
    return ended_at is not None and answered and ended_at <= due_at


def is_at_risk(view: RequestView, place: QueuePlace) -> bool:
    """Returns whether a request's answer is expected later than promised, while it is not known."""
    due_at = None if view.promise is None else view.promise.promised_by
    return due_at is not None and is_kept(view) is None and place.eta_at is not None and place.eta_at > due_at

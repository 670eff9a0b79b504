"""Tenants' usage: requests, tokens and GPU-seconds, by day (UTC), tenant, model and tier.

The transaction that writes results also adds entries (`models.leasing.batch_results`), so that each stored answer
counts once. `fold` moves entries into sums of days, to which a trigger adds those of months, in one transaction.
Deleting requests changes no usage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from sqlalchemy.orm import Session

from models.connections.sql import text

DIMENSIONS = ("day", "tenant", "model", "tier")
# The tier of a request `r` in the usage: its service tier, and `batch` for a line of a bulk job that is not off-peak.
TIER = "case when r.job_id is null or r.tier = 'off_peak' then r.tier::text else 'batch' end"

# The order locks rows of days, and those of months in the trigger, in one order, so that two folds cannot deadlock.
FOLD = text("""
    with taken as (
        delete from usage_entries where id in (
            select id from usage_entries order by id limit :most for update skip locked
        ) returning *
    ), folded as (
        insert into usage_days as old (day, tenant, model, tier, requests, prompt_tokens, answer_tokens, gpu_s)
        select day, tenant, model, tier, sum(requests), sum(prompt_tokens), sum(answer_tokens), sum(gpu_s)
        from taken group by day, tenant, model, tier order by date_trunc('month', day), tenant, tier, day, model
        on conflict (day, tenant, model, tier) do update set requests = old.requests + excluded.requests,
            prompt_tokens = old.prompt_tokens + excluded.prompt_tokens,
            answer_tokens = old.answer_tokens + excluded.answer_tokens, gpu_s = old.gpu_s + excluded.gpu_s
    ), jobs as ( -- locked in one order, so that two folds cannot deadlock
        select id from bulk_jobs where id in (select job_id from taken) order by id for update
    ), of_jobs as (
        update bulk_jobs j set gpu_s = j.gpu_s + (select sum(gpu_s) from taken where job_id = j.id)
        where id = any(array(select id from jobs)) returning j.*
    ), withdrawn as ( -- a job that pauses at its budget has no time by which it is promised any more
        update promises p set promised_by = null, look_at = null from of_jobs j
        where p.request_id = j.id and p.promised_by > statement_timestamp()
            and j.status in ('validating', 'in_progress') and j.gpu_s >= (j.budget->>'gpu_s')::float8
    )
    select count(*) from taken
""")


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """The sums of one group; a dimension by which the usage is not grouped is None."""

    day: date | None
    tenant: str | None
    model: str | None
    tier: str | None
    requests: int
    prompt_tokens: int
    answer_tokens: int
    gpu_s: float


def fold(session: Session, most: int) -> int:
    """Moves up to `most` entries into sums of days and months; returns their number. Concurrent calls share them."""
    folded = session.execute(FOLD, {"most": most}).scalar_one()
    session.commit()
    return int(folded)


def used(
    session: Session, tenant: str | None, first: date, last: date, by: Sequence[str] = DIMENSIONS
) -> list[TenantUsage]:
    """Returns the sums of the days `first` to `last` inclusive, grouped by `by`; `tenant` None means all tenants."""
    if not set(by) <= set(DIMENSIONS):
        raise ValueError(f"usage is grouped by {', '.join(DIMENSIONS)}, not by {', '.join(by)}")
    groups = ", ".join(by)
    columns = "day, tenant, model, tier, requests, prompt_tokens, answer_tokens, gpu_s"
    within = "day between :first and :last and (cast(:tenant as text) is null or tenant = :tenant)"
    rows = session.execute(
        text(f"""
            select {groups}{"," if groups else ""} sum(requests)::bigint as requests,
                sum(prompt_tokens)::bigint as prompt_tokens, sum(answer_tokens)::bigint as answer_tokens,
                sum(gpu_s) as gpu_s
            from (
                select {columns} from usage_days where {within}
                union all
                select {columns} from usage_entries where {within}
            ) as every
            {f"group by {groups} order by {groups}" if groups else "having count(*) > 0"}
        """),  # noqa: S608  # names of DIMENSIONS alone
        {"first": first, "last": last, "tenant": tenant},
    )
    return [TenantUsage(**{**dict.fromkeys(DIMENSIONS), **row._mapping}) for row in rows]

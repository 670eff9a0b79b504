"""Budgets of tenants and bulk jobs: GPU-seconds or a price, after whose use their waiting work pauses.

A tenant's budget begins anew each day or month (UTC), as the usage counts them. What runs when a budget is spent goes
on: its seconds are counted when it ends.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic_core import to_json
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models.connections.sql import run, text
from scheduling.request import TIER_LEVELS, Request

HOUR_S = 3600.0
Unit = Literal["gpu_s", "price"]
Period = Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class SpentBudgets:
    """The tenants and the unended bulk jobs that have used their budgets."""

    tenants: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()

    def covers(self, request: Request) -> bool:
        """Returns whether the request waits until a budget is raised or begins anew; what has begun goes on."""
        return not request.generated and (request.tenant in self.tenants or request.job in self.jobs)


# What each tenant with a budget has used of it in the present period, and when the next one begins. `recent` are the
# entries that are not folded into days and months yet; Postgres reads them only if there is a budget.
USED = """
    recent as materialized (
        select day, tenant, tier, job_id, sum(gpu_s) as gpu_s from usage_entries group by day, tenant, tier, job_id
    ), periods as (
        select name, budget, budget->>'period' as period,
            date_trunc(budget->>'period', statement_timestamp() at time zone 'UTC')::date as begins
        from tenants where budget is not null and name = coalesce(cast(:tenant as text), name)
    ), counted as (
        select name, tier, sum(gpu_s) as gpu_s from (
            select name, folded.* from periods cross join lateral ( -- by the indexes, however many days there are
                select tier, gpu_s from usage_days where period = 'day' and tenant = name and day = begins
                union all
                select tier, gpu_s from usage_months where period = 'month' and tenant = name and month = begins
                offset 0
            ) as folded
            union all
            select name, tier, gpu_s from periods join recent on tenant = name and day >= begins
        ) as usage group by name, tier
    ), used as (
        select name, budget, period, begins + ('1 ' || period)::interval as ends,
            coalesce(sum(gpu_s * case when budget->>'unit' = 'gpu_s' then 1
                else coalesce((cast(:prices as jsonb)->>tier)::float8, 0) end), 0) as amount
        from periods left join counted using (name) group by name, budget, period, begins
    )
"""
SPENT = f"""
    with {USED}, of_jobs as materialized (select job_id as id, sum(gpu_s) as recent_s from recent group by job_id)
    select array(select name from used where amount >= (budget->>'amount')::float8) as tenants, array(
        select id from bulk_jobs left join of_jobs using (id)
        where status in ('validating', 'in_progress', 'finalizing', 'cancelling')
            and (budget->>'gpu_s')::float8 <= gpu_s + coalesce(recent_s, 0)
    ) as jobs
"""  # noqa: S608  # a constant
LEFT = text(f"""
    with {USED}
    select (budget->>'amount')::float8 - amount as amount, budget->>'unit' as unit, period,
        extract(epoch from ends at time zone 'UTC')::float8 as ends_at
    from used
""")  # noqa: S608  # a constant


def tier_prices(prices: Mapping[str, float]) -> dict[str, float]:
    """Returns the prices of a GPU-second by tier of the usage; `prices` are those of MAGNUS_PRICES, or none.

    A bulk job's lines count as `flex` unless they are `off_peak`.
    """
    if not prices:
        return {}
    by_tier = {str(tier): prices["gpu_hour"] * prices.get(tier, 1.0) / HOUR_S for tier in TIER_LEVELS}
    return by_tier | {"batch": by_tier["flex"]}


def spent(connection: Connection, prices: Mapping[str, float]) -> SpentBudgets:
    """Returns whose budgets are spent, by the usage that is stored now and these `tier_prices`."""
    (row,) = run(connection, SPENT, {"prices": to_json(prices).decode(), "tenant": None})
    return SpentBudgets(frozenset(row.tenants), frozenset(row.jobs))


def withdraw_promises(connection: Connection, tenants: Collection[str]) -> None:
    """Withdraws the times promised to waiting requests and bulk jobs of tenants whose budgets are spent now.

    Skips promises that another transaction has locked: they are being settled, or their clients warned.
    """
    withdraw = """
        update promises set promised_by = null, look_at = null where request_id = any(array(
            select request_id from promises p where look_at is not null and promised_by > statement_timestamp()
                and tenant = any(cast(:tenants as text[])) and not exists (
                    select from requests where id = request_id and (status <> 'queued' or generated_ids <> '{}')
                )
            for update skip locked
        ))
    """
    if tenants:
        run(connection, withdraw, {"tenants": list(tenants)})


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """What a tenant may still use until its period ends at `ends_at`, a Unix time."""

    amount: float  # GPU-seconds, or the operator's currency
    unit: Unit
    period: Period
    ends_at: float


def left(session: Session, tenant: str, prices: Mapping[str, float]) -> BudgetLeft | None:
    """Returns what is left of a tenant's budget; None without one."""
    row = session.execute(LEFT, {"prices": to_json(prices).decode(), "tenant": tenant}).one_or_none()
    return None if row is None else BudgetLeft(**row._mapping)

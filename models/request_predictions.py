"""The predictor's queries: claims requests without or with an old prediction, writes predictions and a heartbeat.

A claim ends when its predictions are written, or after CLAIMED_FOR_S, so that no row is locked while a predictor
computes, and the requests of one that was killed go to another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.connections.sql import run, text
from models.planner_state import write_service_state
from models.tables import RequestKind
from scheduling.length_distributions import expected_length
from scheduling.request import ServiceTier

# Seconds after which the requests of a predictor that has not written are predicted by another one: a chunk takes some
# tenths of a second, and seconds with a large encoder on a CPU. What both predict is written once. Not tuned.
CLAIMED_FOR_S = 10.0
FREE = "(predicting_until is null or predicting_until < statement_timestamp())"


@dataclass(frozen=True, slots=True)
class UnpredictedRequest:
    """A request whose generation length is to be predicted, by nobody else before `claimed_until`."""

    id: str
    application: str  # the name that `scoped_application` gives it
    instructions: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int
    kind: RequestKind
    tier: ServiceTier
    claimed_until: datetime


# Marks the requests `chosen` as claimed, and returns them.
CLAIM = """, claimed as (
        update requests r set predicting_until = statement_timestamp() + make_interval(secs => :claimed_for_s)
        from chosen where r.id = chosen.id
        returning r.id, r.tenant || '/' || application, instructions,
            case when kind = 'answer' then input else '' end, -- the others need no prediction
            input_tokens, prompt_tokens, limit_tokens, kind, r.tier, predicting_until, r.arrived_at
    )
    select * from claimed order by tier desc, arrived_at
"""


def claim_unpredicted(connection: Connection, limit: int) -> list[UnpredictedRequest]:
    """Claims up to `limit` unpredicted requests, an equal number of each tenant; skips those that others have claimed.

    Lines of bulk jobs are claimed only if there is nothing else. Those of a tenant go by tier, priority and age. Of
    more tenants than `limit`, chance chooses. May return fewer while there are more.
    """
    return _claim(
        connection,
        f"""
            with recursive tenants as (
                (select tenant from requests where status = 'queued' and predicted_tokens is null
                    order by tenant limit 1)
                union all
                select (select r.tenant from requests r where r.status = 'queued' and r.predicted_tokens is null
                    and r.tenant > t.tenant order by r.tenant limit 1)
                from tenants t where t.tenant is not null
            ), turns as (
                select tenant from tenants where tenant is not null order by random() limit :limit
            ), waiting as (
                select id, tier, arrived_at from turns cross join lateral (
                    select id, tier, arrived_at from requests r
                    where r.tenant = turns.tenant and status = 'queued' and predicted_tokens is null and {FREE}
                    order by tier desc, priority desc, arrived_at
                    limit (select :limit / count(tenant) from turns) for update skip locked
                ) own
            ), chosen as (
                select id from waiting where tier > 'flex' or not exists (select from waiting where tier > 'flex')
                order by tier desc, arrived_at limit :limit
            )
        """,  # noqa: S608  # a constant
        limit=limit,
    )


def claim_outdated(connection: Connection, before: str, limit: int) -> list[UnpredictedRequest]:
    """Claims up to `limit` queued requests predicted by a running regression's version below `before`, oldest first.

    Skips requests that have run already, and those that others have claimed.
    """
    return _claim(
        connection,
        f"""
            with chosen as (
                select id from requests
                where status = 'queued' and predictor_version like 'running-%' and predictor_version < :before
                    and generated_ids = '{{}}' and sealed_group is null and suspect_group is null and {FREE}
                order by predictor_version, arrived_at limit :limit for update skip locked
            )
        """,  # noqa: S608  # a constant
        limit=limit,
        before=before,
    )


def _claim(connection: Connection, chosen: str, **values: object) -> list[UnpredictedRequest]:
    rows = run(connection, chosen + CLAIM, values | {"claimed_for_s": CLAIMED_FOR_S})
    return [UnpredictedRequest(*row[:-1]) for row in rows]


def write_predictions(
    connection: Connection,
    claimed: Sequence[UnpredictedRequest],
    lengths: Mapping[str, tuple[int, int]],
    version: str,
) -> int:
    """Writes lengths (median and upper quantile in tokens) by request id; the planner then fetches the requests.

    A request whose charge was assumed is charged its expected length instead. Skips requests that are queued no more or
    that another predictor has claimed since; returns the number written.
    """
    limits = {one.id: one.limit_tokens for one in claimed}
    written = run(
        connection,
        """
            update requests r set predicted_tokens = p.tokens, predicted_upper_tokens = p.upper_tokens,
                predictor_version = :version, planner_epoch = 0, predicting_until = null,
                charge = case when (charge->>'assumed')::boolean
                    then jsonb_set(charge, '{tokens}', to_jsonb(p.expected)) else charge end
            from unnest(cast(:ids as text[]), cast(:tokens as int[]), cast(:upper_tokens as int[]),
                cast(:expected as int[])) as p (id, tokens, upper_tokens, expected)
            where r.id = p.id and r.status = 'queued' and r.predicting_until = :until
            returning r.id
        """,
        {
            "version": version,
            "ids": list(lengths),
            "tokens": [median for median, _ in lengths.values()],
            "upper_tokens": [upper for _, upper in lengths.values()],
            "expected": [round(expected_length(*each, limits[one])) for one, each in lengths.items()],
            "until": claimed[0].claimed_until,  # one statement claimed them all
        },
    )
    return len(written)


def write_predictor_heartbeat(connection: Connection, version: str, predicted: bool) -> None:
    """Records that a predictor works now; without a recent heartbeat the reconciler writes fallback predictions.

    Without having `predicted` it counts only if no request waits: a waiting text may be what kills predictors.
    """
    waits = "select exists (select from requests where status = 'queued' and predicted_tokens is null)"
    if predicted or not connection.scalar(text(waits)):
        write_service_state(connection, "predictor", {"version": version})


def scoped_application(tenant: str, application: str) -> str:
    """Returns the name under which the service learns from one tenant's answers of an application.

    Two tenants may use the same application name, and neither may learn the other's lengths or times. Queries make this
    name by `tenant || '/' || application`.
    """
    return f"{tenant}/{application}"

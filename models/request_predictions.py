"""The predictor's queries: claims requests without or with an old prediction, writes predictions and a heartbeat."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from models.planning.planner_state import write_service_state
from models.sql import run


@dataclass(frozen=True, slots=True)
class UnpredictedRequest:
    """A request whose generation length is to be predicted, locked until the transaction ends."""

    id: str
    application: str  # as `scoped_application` gives it
    instructions: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int
    priority: int


def claim_unpredicted(connection: Connection, limit: int) -> list[UnpredictedRequest]:
    """Locks up to `limit` unpredicted requests by priority, then age, but none that another predictor has locked."""
    rows = run(
        connection,
        """
            select id, tenant || '/' || application, instructions,
                case when limit_tokens > 1 then input else '' end, -- an answer of one token needs no prediction
                input_tokens, prompt_tokens, limit_tokens, priority
            from requests
            where status = 'queued' and predicted_tokens is null
            order by priority desc, arrived_at limit :limit for update skip locked
        """,
        {"limit": limit},
    )
    return [UnpredictedRequest(*row) for row in rows]


def claim_outdated(connection: Connection, before: str, limit: int) -> list[UnpredictedRequest]:
    """Locks up to `limit` queued requests predicted by a running regression's version below `before`, oldest first.

    Skips requests that have run already, and those that another transaction has locked.
    """
    rows = run(
        connection,
        """
            select id, tenant || '/' || application, instructions, input, input_tokens, prompt_tokens, limit_tokens,
                priority
            from requests
            where status = 'queued' and predictor_version like 'running-%' and predictor_version < :before
                and generated_ids = '{}' and sealed_group is null and suspect_group is null
            order by predictor_version, arrived_at limit :limit for update skip locked
        """,
        {"before": before, "limit": limit},
    )
    return [UnpredictedRequest(*row) for row in rows]


def write_predictions(connection: Connection, lengths: Mapping[str, tuple[int, int]], version: str) -> None:
    """Writes lengths (median and upper quantile in tokens) by request id; the planner then fetches the requests."""
    run(
        connection,
        """
            update requests r set predicted_tokens = p.tokens, predicted_upper_tokens = p.upper_tokens,
                predictor_version = :version, planner_epoch = 0
            from unnest(cast(:ids as text[]), cast(:tokens as int[]), cast(:upper_tokens as int[]))
                as p (id, tokens, upper_tokens)
            where r.id = p.id
        """,
        {
            "version": version,
            "ids": list(lengths),
            "tokens": [median for median, _ in lengths.values()],
            "upper_tokens": [upper for _, upper in lengths.values()],
        },
    )


def write_predictor_heartbeat(connection: Connection, version: str) -> None:
    """Records that a predictor works now; without a recent heartbeat the reconciler writes fallback predictions."""
    write_service_state(connection, "predictor", {"version": version})


def scoped_application(tenant: str, application: str) -> str:
    """Returns the name under which an application's answers are remembered, for each tenant by itself.

    Two tenants may use one name, and neither may learn the other's lengths or times. Queries make the same name by
    `tenant || '/' || application`.
    """
    return f"{tenant}/{application}"

"""The predictor's queries: claim requests without a prediction or with an old one, write predictions and heartbeat."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from models.planning.planner_state import write_service_state
from models.sql import text


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A request that waits for its predicted generation length."""

    id: str
    application: str  # of its tenant, see `models.request_predictions`
    instructions: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int
    priority: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """A request's predicted generation length: the median and an upper quantile, tokens."""

    id: str
    tokens: int
    upper_tokens: int


def claim_unpredicted(connection: Connection, limit: int) -> list[Unpredicted]:
    """Lock up to `limit` of the oldest unpredicted requests of the highest priority until the transaction ends.

    Requests that another predictor has locked are skipped.
    """
    rows = connection.execute(
        text("""
            select id, tenant || '/' || application, instructions, input, input_tokens, prompt_tokens, limit_tokens,
                priority
            from requests
            where status = 'queued' and predicted_tokens is null
            order by priority desc, arrived_at limit :limit for update skip locked
        """),
        {"limit": limit},
    )
    return [Unpredicted(*row) for row in rows]


def claim_outdated(connection: Connection, before: str, limit: int) -> list[Unpredicted]:
    """Lock up to `limit` queued requests whose prediction is by a running version below `before`.

    Those of the oldest version come first, of each version the oldest. Requests that have run already, and those that
    another transaction has locked, are skipped.
    """
    rows = connection.execute(
        text("""
            select id, tenant || '/' || application, instructions, input, input_tokens, prompt_tokens, limit_tokens,
                priority
            from requests
            where status = 'queued' and predictor_version like 'running-%' and predictor_version < :before
                and generated_ids = '{}' and sealed_group is null and suspect_group is null
            order by predictor_version, arrived_at limit :limit for update skip locked
        """),
        {"before": before, "limit": limit},
    )
    return [Unpredicted(*row) for row in rows]


def write_predictions(connection: Connection, predicted: Sequence[Predicted], version: str) -> None:
    """Write predictions made by one version of the predictor; the planner fetches these requests, perhaps again."""
    connection.execute(
        text("""
            update requests r set predicted_tokens = p.tokens, predicted_upper_tokens = p.upper_tokens,
                predictor_version = :version, planner_epoch = 0
            from unnest(cast(:ids as text[]), cast(:tokens as int[]), cast(:upper_tokens as int[]))
                as p (id, tokens, upper_tokens)
            where r.id = p.id
        """),
        {
            "version": version,
            "ids": [row.id for row in predicted],
            "tokens": [row.tokens for row in predicted],
            "upper_tokens": [row.upper_tokens for row in predicted],
        },
    )


def write_predictor_heartbeat(connection: Connection, version: str) -> None:
    """Record that a predictor works now; without a recent heartbeat the reconciler writes fallback predictions."""
    write_service_state(connection, "predictor", {"version": version})


def scoped_application(tenant: str, application: str) -> str:
    """The name as the queries of predictions, outcomes and response times make it: `tenant || '/' || application`."""
    return f"{tenant}/{application}"

"""The predictor's queries: claim what nobody predicted, write what was predicted, say that a predictor lives."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A request that waits for its predicted generation length."""

    id: str
    application: str
    instructions: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """A request's predicted generation length: the median and an upper quantile, tokens."""

    id: str
    tokens: int
    upper_tokens: int


def claim_unpredicted(connection: Connection, limit: int) -> list[Unpredicted]:
    """Lock the oldest unpredicted requests, those of other predictors left out, until the transaction ends."""
    rows = connection.execute(
        text("""
            select id, application, instructions, input, input_tokens, prompt_tokens, limit_tokens from requests
            where status = 'queued' and predicted_tokens is null
            order by arrived_at limit :limit for update skip locked
        """),
        {"limit": limit},
    )
    return [Unpredicted(*row) for row in rows]


def write_predictions(connection: Connection, predicted: Sequence[Predicted], version: str) -> None:
    """Write the predictions of one version."""
    connection.execute(
        text("""
            update requests r set predicted_tokens = p.tokens, predicted_upper_tokens = p.upper_tokens,
                predictor_version = :version
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


def say_alive(connection: Connection, version: str) -> None:
    """Note that a predictor works; the planner falls back to means once it has not heard of any for a while."""
    connection.execute(
        text("""
            insert into service_state (name, value, updated_at)
            values ('predictor', jsonb_build_object('version', cast(:version as text)), clock_timestamp())
            on conflict (name) do update set value = excluded.value, updated_at = excluded.updated_at
        """),
        {"version": version},
    )

"""Reads the trainer's data: answered requests, finished batches and worker profiles."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from models.connections.sql import run, text
from models.registered_workers import registered_workers
from scheduling.costs import ServedBatch, ServingCurves


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """An answered request from which the length predictor learns; `at` is its end, seconds since the epoch."""

    id: str
    application: str  # the name that `models.request_predictions.scoped_application` gives it
    instructions: str
    input: str
    input_tokens: int
    prompt_tokens: int
    limit_tokens: int
    predicted_tokens: int | None
    predicted_upper_tokens: int | None
    output_tokens: int
    cut_off: bool  # whether it ended at its limit: then the true length is at least `output_tokens`
    at: float


# The run-to-completion batches from which the serving time estimator learns.
FINISHED_BATCHES = """
    from batches b join workers w on w.name = b.worker
    where b.finished_at > statement_timestamp() - make_interval(secs => :max_age_s)
        and b.status = 'finished' and not b.joins and b.serving_s > 0 and b.generation_length > 0
    order by b.finished_at desc
"""


def count_answers(connection: Connection, at_most: int, max_age_s: float) -> int:
    """Returns how many of the newest `at_most` answered requests have a text, so that a refit uses them."""
    counted = connection.execute(
        text("""
            select count(*) from (
                select output_tokens, input from requests
                where finished_at > statement_timestamp() - make_interval(secs => :max_age_s)
                    and status in ('completed', 'incomplete') and kind = 'answer' and output_text is distinct from ''
                order by finished_at desc limit :at_most
            ) answers where output_tokens > 0 and input <> '' -- the texts of a request with "store": false are deleted
        """),
        {"at_most": at_most, "max_age_s": max_age_s},
    )
    return int(counted.scalar_one())


def finished_requests(
    connection: Connection, limit: int, max_age_s: float, after: float = 0.0, known_ids: Collection[str] = ()
) -> list[FinishedRequest]:
    """Returns the newest `limit` answers after `after`, within `max_age_s`, without `known_ids`, oldest first."""
    rows = run(
        connection,
        """
            select * from (
                select id, tenant || '/' || application, instructions, input, input_tokens, prompt_tokens, limit_tokens,
                    predicted_tokens, predicted_upper_tokens, output_tokens,
                    status <> 'completed' or finish_reason is not distinct from 'landed' as cut_off,
                    extract(epoch from finished_at)::float8 as at
                from requests
                where finished_at > greatest(
                        statement_timestamp() - make_interval(secs => :max_age_s), to_timestamp(:after)
                    )
                    -- `in` is hashed; with "id <> all" a generic plan compares each row with thousands of ids
                    and id not in (select unnest(cast(:known_ids as text[])))
                    and status in ('completed', 'incomplete') and kind = 'answer' and output_text is distinct from ''
                order by finished_at desc limit :limit
            ) answers where output_tokens > 0 and input <> '' order by at desc
        """,
        {"limit": limit, "max_age_s": max_age_s, "after": after, "known_ids": list(known_ids)},
    )
    return [FinishedRequest(*row) for row in rows][::-1]


def finished_batches(connection: Connection, limit: int, max_age_s: float) -> list[ServedBatch]:
    """Returns the last `limit` run-to-completion batches that ended within `max_age_s`, oldest first."""
    rows = connection.execute(
        text(f"""
            select b.worker, coalesce(b.model, w.model) as model, b.size, b.length, b.generation_length, b.serving_s,
                extract(epoch from b.finished_at)::float8 as at {FINISHED_BATCHES} limit :limit
        """),  # noqa: S608  # a constant
        {"limit": limit, "max_age_s": max_age_s},
    )
    return [ServedBatch(*row) for row in rows][::-1]


def count_batches(connection: Connection, at_most: int, max_age_s: float) -> int:
    """Returns how many run-to-completion batches a refit could read, at most `at_most`."""
    counted = text(f"select count(*) from (select {FINISHED_BATCHES} limit :at_most) served")  # noqa: S608  # constant
    return int(connection.execute(counted, {"at_most": at_most, "max_age_s": max_age_s}).scalar_one())


def worker_profiles(connection: Connection) -> dict[tuple[str, str], ServingCurves]:
    """Returns the serving time curves that workers have measured on their own engines, by (worker, model)."""
    workers = registered_workers(connection)
    return {(one.name, one.model): one.curves.curves for one in workers if one.curves is not None}

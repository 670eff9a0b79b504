"""Deletes the texts of ended requests whose clients did not want them stored; figures stay, for usage and history."""

from collections.abc import Collection

from sqlalchemy import Connection

from models.sql import text
from models.tables import UNSTORED

# The body's fields with the client's text; the others say how the answer was generated.
FORGET = """
    update requests set instructions = '', input = '', output_text = null, logprobs = null,
        body = body - cast('{messages,tools,prompt_ids,instructions,format,metadata}' as text[])
"""


def forget(connection: Connection, ids: Collection[str]) -> None:
    """Delete the texts of these requests, except those that have not ended or are to be stored."""
    connection.execute(
        text(f"{FORGET} where id = any(cast(:ids as text[])) and finished_at is not null and {UNSTORED}"),
        {"ids": list(ids)},
    )


def forget_ended(connection: Connection, after_s: float, limit: int) -> int:
    """Delete the texts of up to `limit` such requests that ended longer ago than `after_s`; returns of how many."""
    return connection.execute(
        text(f"""
            {FORGET} where ctid = any(array(
                select ctid from requests
                where {UNSTORED} and finished_at < statement_timestamp() - make_interval(secs => :after_s)
                order by finished_at limit :limit for update skip locked
            ))
        """),  # noqa: S608
        {"after_s": after_s, "limit": limit},
    ).rowcount

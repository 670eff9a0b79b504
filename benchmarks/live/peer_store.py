"""Requests out of Postgres and answers into it, for the peers of the live benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from models.session import make_engine

CLAIM = text("""
    update requests set status = 'in_progress', started_at = clock_timestamp()
    where id in (
        select id from requests where status = 'queued' order by arrived_at limit :most for update skip locked
    )
    returning id, instructions, input, limit_tokens
""")

ANSWER = text("""
    update requests r set status = 'completed', output_text = a.output, output_tokens = a.tokens, finish_reason = 'eos',
        finished_at = clock_timestamp()
    from unnest(cast(:ids as text[]), cast(:outputs as text[]), cast(:tokens as int[])) as a (id, output, tokens)
    where r.id = a.id
""")


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A claimed request."""

    id: str
    instructions: str
    input: str
    limit: int


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Its answer."""

    id: str
    output: str
    tokens: int


class Store:
    """The peers' side of the requests table."""

    def __init__(self, database_url: str) -> None:
        self._engine = make_engine(database_url, pool_size=2, name="benchmark peer")

    def claim(self, most: int) -> list[PeerRequest]:
        """Take up to so many queued requests, eldest first."""
        with self._engine.begin() as connection:
            return [PeerRequest(*row) for row in connection.execute(CLAIM, {"most": most})]

    def answer(self, answers: Sequence[PeerAnswer]) -> None:
        """Complete requests."""
        columns = {
            "ids": [answer.id for answer in answers],
            "outputs": [answer.output for answer in answers],
            "tokens": [answer.tokens for answer in answers],
        }
        with self._engine.begin() as connection:
            connection.execute(ANSWER, columns)

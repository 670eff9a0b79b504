"""Reads requests from Postgres and writes answers to it, for the peers of the live benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from models.session import make_engine

CLAIM = text("""
    update requests set status = 'in_progress', started_at = clock_timestamp()
    where id in (
        select id from requests where status = 'queued' order by arrived_at limit :limit for update skip locked
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
    """A request that a peer has claimed."""

    id: str
    instructions: str
    input: str
    limit: int


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The answer to a claimed request."""

    id: str
    output: str
    tokens: int


class PeerStore:
    """The requests table, as the peers use it."""

    def __init__(self, database_url: str) -> None:
        self._engine = make_engine(database_url, pool_size=2, name="benchmark peer")

    def claim(self, limit: int) -> list[PeerRequest]:
        """Claim at most so many queued requests, the oldest first."""
        with self._engine.begin() as connection:
            return [PeerRequest(*row) for row in connection.execute(CLAIM, {"limit": limit})]

    def answer(self, answers: Sequence[PeerAnswer]) -> None:
        """Write answers and complete their requests."""
        columns = {
            "ids": [answer.id for answer in answers],
            "outputs": [answer.output for answer in answers],
            "tokens": [answer.tokens for answer in answers],
        }
        with self._engine.begin() as connection:
            connection.execute(ANSWER, columns)

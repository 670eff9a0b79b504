"""Rows in an engine whose server is the stub."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inference.engine_requests import DecodingRequest, FinishedRow
from inference.remote.remote_engine import RemoteEngine
from tests.integration.stub_engine_server import prompt_of


def a_sequence(id: str = "a", tokens: int = 10, **options: Any) -> DecodingRequest:
    """A row that the stub answers with `tokens` tokens."""
    return DecodingRequest(id, prompt_of(tokens), **({"limit": 1000} | options))


def ended(engine: RemoteEngine) -> dict[str, FinishedRow]:
    """All rows that ended, once none is left in the engine."""
    rows: dict[str, FinishedRow] = {}
    while engine.rows:
        rows |= {row.id: row for row in engine.step()}
    return rows


def answered(engine: RemoteEngine, sequence: DecodingRequest) -> FinishedRow:
    """The answer of a row that goes back to the queue, and comes again, for as long as it is unfinished."""
    while True:
        engine.insert([sequence])
        row = ended(engine)[sequence.id]
        if row.reason != "unfinished":
            return row
        sequence = replace(sequence, generated_ids=row.generated_ids, logprobs=row.logprobs)


def step_until(engine: RemoteEngine, condition: Callable[[], object]) -> list[FinishedRow]:
    """Steps until the condition holds; returns the rows that ended."""
    rows = []
    while not condition():
        rows += engine.step()
    return rows

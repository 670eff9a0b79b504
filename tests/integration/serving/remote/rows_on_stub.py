"""Rows in an engine whose server is the stub."""

from collections.abc import Callable
from typing import Any

from inference.remote.remote_engine import RemoteEngine
from inference.sequences import FinishedSequence, Sequence
from tests.integration.stub_engine_server import prompt_of


def a_sequence(id: str = "a", tokens: int = 10, **options: Any) -> Sequence:
    """A row that the stub answers with `tokens` tokens."""
    return Sequence(id, prompt_of(tokens), **({"limit": 1000} | options))


def ended(engine: RemoteEngine) -> dict[str, FinishedSequence]:
    """All rows that ended, once none is left in the engine."""
    rows: dict[str, FinishedSequence] = {}
    while engine.rows:
        rows |= {row.id: row for row in engine.step()}
    return rows


def step_until(engine: RemoteEngine, condition: Callable[[], object]) -> list[FinishedSequence]:
    """Steps until the condition holds; returns the rows that ended."""
    rows = []
    while not condition():
        rows += engine.step()
    return rows

"""`magnus train` on a real Postgres: a fit holds no connection, so that no bound on idle transactions can end it."""

from pathlib import Path
from typing import Any

import pytest

from cli.commands import learned_commands
from cli.commands.learned_commands import pretrain
from cli.commands.training_examples import Example
from inference.toy.toy_applications import toy_requests
from learning.retraining.refit import refit
from models import model_versions
from models.connections.session import make_engine
from settings import Settings


def test_no_transaction_is_open_during_a_fit_and_its_model_is_published(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    examples = [Example(one.instruction, one.input, one.input) for one in toy_requests(300, seed=3)]
    engine = make_engine(database_url, pool_size=1)
    in_use: list[int] = []

    def watched_refit(*given: Any, **named: Any) -> Any:
        in_use.append(engine.pool.checkedout())  # type: ignore[attr-defined]  # of a QueuePool
        return refit(*given, **named)

    monkeypatch.setattr(learned_commands, "refit", watched_refit)
    try:
        candidate = pretrain(engine.begin, examples, Settings(state_dir=tmp_path), tenant="acme", force=True)
        with engine.begin() as connection:
            version = model_versions.active_version(connection, "length")
    finally:
        engine.dispose()
    assert in_use == [0]
    assert candidate.scores
    assert version is not None

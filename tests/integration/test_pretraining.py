"""`magnus train` on a real Postgres: a fit that outlasts the server's bound on idle transactions is published."""

from pathlib import Path

from cli.pretraining import Example, pretrain
from inference.toy.toy_applications import toy_requests
from models import model_versions
from models.session import make_engine
from settings import Settings


def test_no_transaction_is_idle_during_a_fit_however_long_it_takes(database_url: str, tmp_path: Path):
    examples = [Example(one.instruction, one.input, one.input) for one in toy_requests(300, seed=3)]
    engine = make_engine(database_url, pool_size=1, idle_in_transaction_s=0.01)  # no fit is that fast
    try:
        candidate = pretrain(engine.begin, examples, Settings(state_dir=tmp_path), tenant="acme", force=True)
        with engine.begin() as connection:
            version = model_versions.active_version(connection, "length")
    finally:
        engine.dispose()
    assert candidate.scores
    assert version is not None

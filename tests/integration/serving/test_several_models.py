"""One worker with two models: each request is answered by its own model, also if the worker dies in a change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.database_stage import Stage
from tests.integration.forked_worker import OneWorker
from tests.integration.serving.two_model_worker import SEEDS, serve
from tests.integration.serving_worker import answer_alone, small_model

pytestmark = pytest.mark.timeout(300)
LIMIT = 12


@pytest.fixture
def one_worker(stage: Stage, database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OneWorker]:
    policy, dies_once = request.param
    worker = OneWorker(stage, policy, serve, database_url, tmp_path, dies_once)
    yield worker
    worker.close()


@pytest.mark.parametrize("one_worker", [("fusion", False), ("magnus", False), ("fusion", True)], indirect=True)
def test_every_request_is_answered_by_its_own_model(stage: Stage, one_worker: OneWorker, tmp_path: Path) -> None:
    asked = {f"r{number:02}": (["small", "other"][number % 2], "abcdefgh"[: 1 + number % 8]) for number in range(12)}
    for name, (model, text) in asked.items():
        stage.request(name, model=model, input=text, limit_tokens=LIMIT)
    one_worker.serve(list(asked))
    expected = {
        name: ("incomplete", answer_alone(*small_model(tmp_path / model, SEEDS[model]), text, LIMIT))
        for name, (model, text) in asked.items()
    }
    assert stage.requests("status", "output_text") == expected
    served = stage.sql("select distinct r.model, b.model from requests r join batches b on b.id = r.batch_id")
    assert sorted(served) == [("other", "other"), ("small", "small")]
    ((changes, wanted),) = stage.sql("select facts->'model_changes', wanted_model from workers")
    assert changes >= 1
    assert wanted is None

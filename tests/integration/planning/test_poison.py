"""One request that harms a real worker process, among others: it alone fails, and the others are not charged for it."""

import math
from collections.abc import Iterator

import pytest

from tests.integration.database_stage import MODEL, Stage
from tests.integration.forked_worker import OneWorker
from tests.integration.planning.poisoned_worker import BREAKS_DEVICE, EXHAUSTS, KILLS, serve
from tests.integration.serving_worker import small_model
from tests.integration.small_model import UNKNOWN_TO_MODEL

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def one_worker(
    stage: Stage, database_url: str, tmp_path_factory: pytest.TempPathFactory, request
) -> Iterator[OneWorker]:
    directory = tmp_path_factory.getbasetemp() / MODEL
    small_model(directory)
    worker = OneWorker(stage, request.param, serve, database_url, directory)
    yield worker
    worker.close()


SEVERAL_KINDS = pytest.mark.parametrize("one_worker", ["fusion", "baton", "magnus"], indirect=True)


@SEVERAL_KINDS
@pytest.mark.long
@pytest.mark.parametrize(
    ("poison", "code"), [(UNKNOWN_TO_MODEL, "server_error"), (EXHAUSTS, "out_of_memory")], ids=["raises", "exhausts"]
)
def test_what_breaks_the_engine_fails_alone(stage: Stage, one_worker: OneWorker, poison: str, code: str) -> None:
    innocent = [stage.request(f"r{n:02}", input="abcdefgh"[: 1 + n % 8]) for n in range(30)]
    guilty = [stage.request(f"g{n}", input=f"abc{poison}") for n in range(2)]
    one_worker.serve(innocent + guilty)
    outcomes = stage.requests("status", "error->>'code'")
    assert {outcomes[one] for one in innocent} == {("incomplete", None)}
    assert {outcomes[one] for one in guilty} == {("failed", code)}
    attempts = stage.requests("attempts")
    assert {attempts[one] for one in innocent} == {1}
    assert max(attempts[one] for one in guilty) <= math.log2(32) + 2
    assert one_worker.deaths == 0


@SEVERAL_KINDS
@pytest.mark.parametrize("poison", [KILLS, BREAKS_DEVICE], ids=["kills the process", "breaks the device"])
def test_what_ends_the_worker_fails_alone(stage: Stage, one_worker: OneWorker, poison: str) -> None:
    innocent = [stage.request(f"r{n}", input="abcdefgh"[: 1 + n]) for n in range(3)]
    guilty = stage.request("guilty", input=f"abc{poison}")
    one_worker.serve([*innocent, guilty])
    outcomes = stage.requests("status", "error->>'code'", "attempts")
    assert {outcomes[one] for one in innocent} == {("incomplete", None, 1)}
    status, code, attempts = outcomes[guilty]
    assert (status, code) == ("failed", "server_error")
    assert one_worker.deaths <= attempts <= math.log2(4) + 2  # the last death may come just after the last answer

"""Tokens are resumed only by the model that generated them; another one under the same name begins anew."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference.model_directory.model_fingerprint import fingerprints
from tests.integration.database_stage import MODEL, Stage
from tests.integration.serving_worker import Serving, small_model

LIMIT, SLICE = 16, 5
PROMPT = "abc"
SEEDS = {"first": 3, "its copy": 3, "another": 4}  # of the models' weights; each has a directory of its own

StartWorker = Callable[[str], Serving]


@pytest.fixture
def start(stage: Stage, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts a worker of a model in SEEDS, which all go by one name, on a real engine."""
    started: dict[str, Serving] = {}

    def start(name: str) -> Serving:
        if name not in started:
            loaded, prompt_format = small_model(tmp_path / name, SEEDS[name])
            own = fingerprints(MODEL, str(tmp_path / name), {})
            started[name] = Serving(stage, loaded, prompt_format, kv_tokens=10_000, name=name, fingerprints=own)
        return started[name]

    yield start
    for serving in started.values():
        serving.close()


def slice_of(serving: Serving, id: str) -> None:
    serving.serve(id, iteration_limit=SLICE)


def preempted(serving: Serving, id: str) -> None:
    batch = serving.assign(id, joins=True)
    running = serving.start(batch)
    serving.running(batch)
    serving.serve(joins=True, preempts=[id])
    running.result(timeout=60)


def given_back(serving: Serving, id: str) -> None:
    batch = serving.assign(id, joins=True)
    serving.start(batch)
    serving.running(batch)
    serving.runner.stop()


WAYS = (slice_of, preempted, given_back)


@pytest.mark.parametrize("interrupt", WAYS, ids=lambda way: way.__name__)
def test_another_model_of_the_same_name_answers_from_the_prompt(
    stage: Stage, start: StartWorker, interrupt: Callable[[Serving, str], None]
) -> None:
    limit = LIMIT if interrupt is slice_of else 3000  # long enough to be interrupted
    stage.request("r", input=PROMPT, limit_tokens=limit)
    interrupt(start("first"), "r")
    ((kept, attempts),) = stage.sql("select cardinality(generated_ids), attempts from requests")
    assert kept >= 3
    another = start("another")
    assert start("first").alone(PROMPT, LIMIT) != another.alone(PROMPT, LIMIT)
    stage.sql("update requests set limit_tokens = :limit", limit=kept + LIMIT)
    another.serve("r")
    assert stage.requests("output_text", "attempts") == {"r": (another.alone(PROMPT, kept + LIMIT), attempts + 1)}


@pytest.mark.parametrize("interrupt", WAYS, ids=lambda way: way.__name__)
def test_the_same_model_elsewhere_goes_on_from_the_tokens(
    stage: Stage, start: StartWorker, interrupt: Callable[[Serving, str], None]
) -> None:
    limit = LIMIT if interrupt is slice_of else 3000
    stage.request("r", input=PROMPT, limit_tokens=limit)
    interrupt(start("first"), "r")
    ((kept,),) = stage.sql("select cardinality(generated_ids) from requests")
    stage.sql("update requests set limit_tokens = :limit", limit=kept + LIMIT)
    copy = start("its copy")
    batch = copy.serve("r")
    assert copy.batch(batch, "valid_tokens") == LIMIT
    assert stage.requests("output_text") == {"r": copy.alone(PROMPT, kept + LIMIT)}


def test_log_probabilities_of_another_models_tokens_are_left_behind(stage: Stage, start: StartWorker) -> None:
    stage.request("r", input=PROMPT, limit_tokens=LIMIT, body={"top_logprobs": 0})
    slice_of(start("first"), "r")
    another = start("another")
    another.serve("r")
    ((answer, logprobs),) = stage.sql("select output_text, logprobs from requests")
    assert answer == another.alone(PROMPT, LIMIT) == "".join(one["token"] for one in logprobs)


@pytest.mark.parametrize("ids", [[2, 2, 2], [2, 10**6]], ids=["in the vocabulary", "beyond the vocabulary"])
@pytest.mark.parametrize("by", [None, "another fingerprint"])
def test_tokens_of_an_unknown_model_are_resumed_by_nobody_who_knows_its_own(
    stage: Stage, start: StartWorker, by: str | None, ids: list[int]
) -> None:
    stage.request("r", input=PROMPT, limit_tokens=LIMIT, generated_ids=ids, generated_by=by)
    another = start("another")
    another.serve("r")
    assert stage.requests("output_text", "attempts") == {"r": (another.alone(PROMPT, LIMIT), 1)}

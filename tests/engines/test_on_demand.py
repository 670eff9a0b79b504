"""A real server that loads the model that a request names: `transformers serve`, started without a model."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai import OpenAI

from benchmarks.inputs.changed_models import make_endless_model
from benchmarks.outside_engines.server_processes import running_engine
from settings import BUNDLED_MODEL
from tests.e2e.whole_service import Up, running_up
from tests.engines.tested_engines import TERMS

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
WORDS = "apple river"


@pytest.fixture(scope="module", params=("transformers",))
def on_demand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A service in front of such a server of this kind."""
    directory = tmp_path_factory.mktemp("on-demand")
    endless = make_endless_model(directory)
    with (
        running_engine(request.param, replace(TERMS, on_demand=True), directory) as server,
        running_up(
            "--engine", server.url, "--model", str(BUNDLED_MODEL), MAGNUS_MODELS=str(endless), MAGNUS_WAIT_S="300"
        ) as up,
    ):
        yield up


def worker_of(up: Up) -> dict[str, Any]:
    """The only worker, as the status has it."""
    answer = httpx.get(f"{up.url}/v1/magnus/stats", headers={"Authorization": f"Bearer {up.key}"})
    worker: dict[str, Any]
    (worker,) = answer.json()["models"]
    return worker


def test_each_request_is_answered_by_its_own_model_and_the_status_says_what_a_change_costs(on_demand: Up):
    up, ended = on_demand, {}
    assert worker_of(up)["loadable"].keys() == {"bundled", "endless"}  # a request for one that was left out would wait
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key, timeout=300) as client:
        for model in ("bundled", "endless", "bundled"):
            answer = client.chat.completions.create(
                model=model,
                messages=[{"role": "system", "content": "Repeat the text."}, {"role": "user", "content": WORDS}],
                max_tokens=40,
            ).choices[0]
            ended[model] = answer.finish_reason, (answer.message.content or "").startswith(WORDS)
    assert ended == {"bundled": ("stop", True), "endless": ("length", True)}
    worker = worker_of(up)
    assert worker["model"] == "bundled"
    assert worker["changes"] == 2
    assert min(worker["loadable"][name] for name in ("bundled", "endless")) > 0

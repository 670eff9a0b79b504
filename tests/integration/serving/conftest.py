"""What tests of serving share: a stub of an engine server, and a worker's threads, which log nothing."""

import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

from tests.integration.database_stage import MODEL, Stage
from tests.integration.serving_worker import Serving, small_model
from tests.integration.stub_engine_server import StubServer


@pytest.fixture
def server() -> Iterator[StubServer]:
    """A stub of an engine server."""
    stub = StubServer()
    yield stub
    stub.die()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Faults that a test means to happen are not logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def make_serving(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Serving]]:
    loaded, prompt_format = small_model(tmp_path_factory.getbasetemp() / MODEL)
    made: list[Serving] = []

    def make(kv_tokens: int = 100_000) -> Serving:
        made.append(Serving(stage, loaded, prompt_format, kv_tokens))
        return made[-1]

    yield make
    for serving in made:
        serving.close()


@pytest.fixture
def serving(make_serving: Callable[..., Serving]) -> Serving:
    return make_serving()

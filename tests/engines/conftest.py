"""One engine a session and kind; `--engines` chooses the kinds, the tests of all others are deselected."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from benchmarks.outside_engines.server_processes import EngineServer
from inference.engine_requests import FinishedRow
from tests.engines.tested_engines import KINDS, SERVERS, EngineUnderTest, endless_terms, engine_under_test

OF_A_KIND = ("served", "endless", "on_demand", "adapted", "pooled")  # fixtures whose parameter is a kind of engine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of the engines that were not asked for."""
    asked = config.getoption("--engines")
    chosen = set(KINDS if asked == "all" else asked.split(","))
    unknown = chosen - set(KINDS)
    if unknown:
        raise pytest.UsageError(f"--engines: no engine is called {', '.join(sorted(unknown))}; {', '.join(KINDS)} are")
    left_out = [item for item in items if _is_left_out(item, chosen)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item, chosen: set[str]) -> bool:
    kind = _kind(item)
    asks_for_a_process = isinstance(item, pytest.Function) and "server" in item.fixturenames
    return kind is not None and (kind not in chosen or (asks_for_a_process and kind not in SERVERS))


def _kind(item: pytest.Item) -> str | None:
    """The kind of engine of a test in this folder; None for any other test."""
    if Path(__file__).parent not in item.path.parents or not isinstance(item, pytest.Function):
        return None
    return next((str(item.callspec.params[name]) for name in OF_A_KIND if name in item.callspec.params), None)


@pytest.fixture(scope="package")
def engines(tmp_path_factory) -> Iterator[Callable[[str], EngineUnderTest]]:
    """Starts an engine of a kind at its first test; all run until the last test, so that any order starts each once."""
    with ExitStack() as running:
        yield cache(lambda kind: running.enter_context(engine_under_test(kind, tmp_path_factory.mktemp(kind))))


@pytest.fixture(scope="package", params=KINDS)
def served(request, engines: Callable[[str], EngineUnderTest]) -> EngineUnderTest:
    """Each kind of engine in turn, on the bundled model."""
    return engines(request.param)


@pytest.fixture
def tested(served) -> Iterator[EngineUnderTest]:
    """The engine without rows: those that a failed test leaves in it are removed."""
    yield served
    for row in list(served.engine.rows):
        served.engine.remove(row)
    served.drain()


@pytest.fixture
def server(tested: EngineUnderTest) -> EngineServer:
    """The server behind the engine; tests that use it skip our own engine, which has none."""
    assert tested.server is not None
    return tested.server


@pytest.fixture(scope="package", params=("vllm", "llamacpp"))  # transformers serve does not say what runs in it
def endless(request, tmp_path_factory) -> Iterator[EngineUnderTest]:
    """A server that says how many rows run in it, with a model whose answers end at their limits."""
    directory = tmp_path_factory.mktemp(f"endless-{request.param}")
    with engine_under_test(request.param, directory, endless_terms(directory)) as engine:
        yield engine


@pytest.fixture(scope="package")
def right_engine(tmp_path_factory) -> Iterator[EngineUnderTest]:
    """Our engine, whose answers are those of `model.generate` (tests/unit/inference/local/test_engine.py)."""
    with engine_under_test("ours", tmp_path_factory.mktemp("right")) as ours:
        yield ours


@pytest.fixture(scope="package")
def right_answers(right_engine: EngineUnderTest) -> dict[str, FinishedRow]:
    """What our engine answers to the toy requests."""
    return right_engine.drain(right_engine.toy_sequences())

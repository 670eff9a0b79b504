"""A stub of a server of others, and engines on it."""

from collections.abc import Callable, Iterator

import pytest

from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_probe import connect
from tests.integration.stub_engine_server import StubServer


@pytest.fixture
def make_engine(server: StubServer) -> Iterator[Callable[..., RemoteEngine]]:
    """Makes engines on the stub; they are closed at the end."""
    made: list[RemoteEngine] = []

    def make(silent_s: float = 30.0) -> RemoteEngine:
        made.append(RemoteEngine(connect(server.url), silent_s=silent_s))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., RemoteEngine]) -> RemoteEngine:
    """An engine on the stub."""
    return make_engine()

"""What the tests of serving share: a stub of a server of others, and a worker's threads that log nothing."""

import logging
from collections.abc import Iterator

import pytest
import structlog

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

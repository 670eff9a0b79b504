"""One service for all chaos tests; whatever a test stopped is started again before the next one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.breakable_service import Service, running_service
from tests.integration.small_model import make_small_model


@pytest.fixture(scope="package")
def whole_service() -> Iterator[Service]:
    """A service with two workers on the small model."""
    with (
        tempfile.TemporaryDirectory(prefix="magnus-chaos-", ignore_cleanup_errors=True) as name,
        running_service(Path(name), make_small_model(Path(name) / "model")) as service,
    ):
        yield service


@pytest.fixture
def service(whole_service: Service) -> Service:
    """The service with everything running and nothing waiting."""
    ended = [name for name, process in whole_service.running.items() if process.poll() is not None]
    whole_service.start(*ended)
    return whole_service

"""One whole service for every test of this directory."""

from collections.abc import Iterator

import pytest

from tests.e2e.whole_service import Up, running_up


@pytest.fixture(scope="package")
def up() -> Iterator[Up]:
    """A running service, which itself restarts the processes that a test kills.

    Long answers go on to their limits although they repeat themselves, so that tests can cancel them.
    """
    with running_up(MAGNUS_PARAMETERS="loops=off") as up:
        yield up

"""The short form of some promises of `python -m benchmarks.chaos`: a whole service, broken from outside."""

from collections.abc import Iterator

import pytest

from benchmarks.chaos.promise_rows import SHORT
from benchmarks.chaos.promise_runner import PROMISES, PromiseRunner
from benchmarks.chaos.servers import GivenServers

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

IN_EVERY_RUN = ("idle", "hostile", "models", "kills", "rescue")  # four minutes; `make chaos` runs all


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[PromiseRunner]:
    """One runner, so that promises share its service; on servers that run already where both are given."""
    urls = [request.config.getoption(option) for option in ("--postgres-url", "--redis-url")]
    with PromiseRunner(SHORT, GivenServers(*urls) if all(urls) else None) as runner:
        yield runner


@pytest.mark.parametrize("name", IN_EVERY_RUN)
def test_the_promise_holds(runner: PromiseRunner, name: str):
    broken = [row for row in runner.run(PROMISES[name]) if not row.ok]
    assert not broken, "\n".join(f"{row.promise}: {row.bound}; measured: {row.measured}" for row in broken)


def test_nothing_is_left_running_after_ctrl_c(runner: PromiseRunner):
    assert all(row.ok for row in runner.renew())

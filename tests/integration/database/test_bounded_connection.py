"""Connections to a Postgres that is frozen (SIGSTOP): nobody waits without bound, and nothing is lost afterwards."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import psutil
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from cli.hosting.child_process import start, stop
from cli.hosting.readiness import await_ready
from models.connections.session import make_engine
from tests.integration.database_stage import eventually
from tests.quick_postgres import quick_postgres


class Server:
    """A Postgres that only this test uses."""

    def __init__(self, directory: Path) -> None:
        self.server = quick_postgres(directory)
        self.process = start(self.server.program, directory / "log")
        await_ready(self.server.program, self.process, directory / "log")
        self.url = self.server.url.replace("/magnus?", "/postgres?")

    def everybody(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]


@pytest.fixture
def server() -> Iterator[Server]:
    with TemporaryDirectory(prefix="magnus-frozen-", ignore_cleanup_errors=True) as directory:
        one = Server(Path(directory))
        yield one
        stop((one.server.program, one.process))


def answers(engine: Engine) -> bool:
    try:
        with engine.connect() as connection:
            return bool(connection.execute(text("select true")).scalar_one())
    except OperationalError:
        return False


def test_a_frozen_postgres_frees_every_thread_and_serves_again_once_it_goes_on(server: Server):
    engine = make_engine(server.url, answer_within_s=0.5, pool_timeout_s=5.0, pool_size=2, autocommit=True)
    assert answers(engine)
    for process in server.everybody():
        process.suspend()
    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(answers, [engine] * 8))
    began = monotonic()
    # it is known to be silent, so that no further thread waits for it
    assert not any(answers(engine) for _ in range(5))
    assert monotonic() - began < 5 * 2  # even if each had waited for a new connection
    for process in server.everybody():
        process.resume()
    assert eventually(lambda: answers(engine))
    engine.dispose()


def test_a_statement_beyond_its_bound_fails_alone_while_the_server_answers_others(server: Server):
    engine = make_engine(server.url, answer_within_s=0.5, pool_size=4, autocommit=True)

    def slow() -> str:
        with engine.connect() as connection, pytest.raises(OperationalError) as failure:
            connection.execute(text("select true from pg_sleep(20)"))
        return str(failure.value.orig)

    with ThreadPoolExecutor(2) as pool:
        failures = [pool.submit(slow) for _ in range(2)]
        while not all(failure.done() for failure in failures):
            assert answers(engine)
        assert all("this statement had no answer" in failure.result() for failure in failures)
    assert answers(engine)
    engine.dispose()

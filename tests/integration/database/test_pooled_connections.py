"""Behind a pooler, Magnus's statements work on whatever session another client left, such as a dump's."""

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import DBAPIError

from models.connections.session import is_pooled, make_engine
from models.connections.sql import run
from settings import Settings
from tasks.planning.planner_process import planner_database
from tests.integration.api_service import Api
from tests.integration.conftest import running_api

PROCESS_ID = re.compile(rb"(?<=K\0\0\0\x0c)....", re.DOTALL)  # Postgres's answer at the start of a session
LEFT_BY_A_DUMP = "select set_config('search_path', '', false), set_config('statement_timeout', '0', false)"


class Pooler(ThreadingTCPServer):
    """Passes bytes on to Postgres, and tells another process id than its own, by which Magnus knows a pooler."""

    daemon_threads = True

    def __init__(self, database_url: str) -> None:
        super().__init__(("127.0.0.1", 0), PassedOn)
        given = conninfo_to_dict(database_url)
        host, port = str(given["host"]), int(given.get("port") or 5432)
        self.server = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        url = make_url(database_url).set(host="127.0.0.1", port=self.server_address[1], query={})
        self.url = url.render_as_string(hide_password=False)


class PassedOn(BaseRequestHandler):
    """One client's connection."""

    server: Pooler

    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX if isinstance(self.server.server, str) else socket.AF_INET) as postgres:
            postgres.connect(self.server.server)
            back = Thread(target=self._pass_back, args=(postgres,), daemon=True)
            back.start()
            with suppress(OSError):
                while data := self.request.recv(65536):
                    postgres.sendall(data)

    def _pass_back(self, postgres: socket.socket) -> None:
        with suppress(OSError):
            while data := postgres.recv(65536):
                self.request.sendall(PROCESS_ID.sub(b"\0\0\0\x01", data, count=1))


@pytest.fixture
def pooled_url(database_url: str) -> Iterator[str]:
    with Pooler(database_url) as pooler:
        thread = Thread(target=pooler.serve_forever)
        thread.start()
        yield pooler.url
        pooler.shutdown()
        thread.join()


@pytest.fixture(params=[False, True], ids=["transactions", "autocommit"])
def pooled(pooled_url: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine whose one connection has what a dump leaves in a pooled one."""
    engine = make_engine(pooled_url, pool_size=1, autocommit=request.param, statement_timeout_s=0.5)
    with engine.begin() as connection:
        assert is_pooled(connection)
        connection.exec_driver_sql(LEFT_BY_A_DUMP)
    yield engine
    engine.dispose()


def test_each_transaction_brings_its_search_path(pooled: Engine) -> None:
    insert = text("insert into service_state (name, value) values (:name, '{}')")
    with pooled.begin() as connection:
        connection.execute(insert, [{"name": "one"}, {"name": "two"}])
    with pooled.begin() as connection:
        assert run(connection, "select value from service_state where name = :name", {"name": "one"}) == [({},)]
        assert connection.scalar(text("select count(*) from service_state where name = 'two'")) == 1


def test_the_planners_transactions_bring_all_their_settings(pooled_url: str) -> None:
    planner = planner_database(pooled_url)
    with planner.begin() as connection:
        assert is_pooled(connection)
        found = {name: connection.scalar(text(f"show {name}")) for name in ("enable_seqscan", "lock_timeout")}
    planner.dispose()
    assert found["enable_seqscan"] == "off"
    assert found["lock_timeout"] != "0"


def test_each_transaction_brings_its_time_out(pooled: Engine) -> None:
    with pooled.connect() as connection, pytest.raises(DBAPIError, match="statement timeout"):
        connection.execute(text("select pg_sleep(20)"))
    with pooled.connect() as connection:
        assert connection.scalar(text("select 1")) == 1  # the connection is as good as before


def test_what_is_left_in_the_session_stays_there_for_the_other_client(pooled: Engine, pooled_url: str) -> None:
    with pooled.connect() as connection:
        connection.scalar(text("select count(*) from requests"))
        connection.rollback()
        driver = connection.connection.driver_connection
        assert driver is not None
        assert psycopg.Cursor(driver).execute("show search_path").fetchone() == ("",)


def test_the_path_of_role_or_database_is_the_one_that_counts(database_url: str, pooled_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        name = make_url(database_url).database
        owner.execute("create schema elsewhere")
        owner.execute("create table elsewhere.alembic_version as table alembic_version")
        owner.execute("create table elsewhere.only_here ()")
        owner.execute(f"alter database {name} set search_path = elsewhere")
    engine = make_engine(pooled_url, pool_size=1)
    for _ in range(2):
        with engine.begin() as connection:
            assert connection.scalar(text("select count(*) from only_here")) == 0
            connection.exec_driver_sql(LEFT_BY_A_DUMP)
    engine.dispose()


@pytest.fixture
def pooled_api(pooled_url: str, web_settings: Settings) -> Iterator[Api]:
    yield from running_api(web_settings.model_copy(update={"database_url": pooled_url}))


def test_calls_are_served_after_a_dump_through_the_pooler(pooled_api: Api) -> None:
    service = pooled_api.client.application.extensions["magnus"]
    for _ in range(3):
        with service.sessions() as session:
            session.execute(text(LEFT_BY_A_DUMP))
        assert pooled_api.client.get("/readyz").status_code == 200
        assert pooled_api.submit()["status"] == "queued"

"""Statements that the driver runs behave as SQLAlchemy's: in its transactions, with its errors, without values."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

from models.connections.session import make_engine
from models.connections.sql import run


@pytest.fixture(params=[False, True], ids=["transactions", "autocommit"])
def database(database_url: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = make_engine(database_url, pool_size=3, autocommit=request.param)
    yield engine
    engine.dispose()


def test_rows_have_names_and_values_have_their_types(database: Engine) -> None:
    values = {"name": "a % b", "ids": [1, 2], "none": None, "at": datetime(2026, 11, 26, tzinfo=UTC)}
    with database.connect() as connection:
        (row,) = run(
            connection,
            "select cast(:name as text) as name, cast(:ids as int[]) as ids, cast(:none as int) as none, :at as at, "
            "cast('{\"a\": 1}' as jsonb) as json",
            values,
        )
    assert row._asdict() == {**values, "json": {"a": 1}}


def test_a_statement_without_rows_has_none(database: Engine) -> None:
    with database.connect() as connection:
        assert run(connection, "set local work_mem = '4MB'") == []


def test_what_it_writes_is_undone_and_committed_with_the_connection(database_url: str) -> None:
    engine = make_engine(database_url, pool_size=2)
    write = "insert into service_state (name, value, updated_at) values (:name, '{}', now())"
    with engine.connect() as connection:
        run(connection, write, {"name": "undone"})
    with engine.connect() as connection:
        run(connection, write, {"name": "kept"})
        connection.commit()
    with Session(engine) as session:
        run(session.connection(), write, {"name": "session"})
        session.commit()
    with engine.connect() as connection:
        found = run(connection, "select name from service_state where name in ('undone', 'kept', 'session')")
    assert {row.name for row in found} == {"kept", "session"}
    engine.dispose()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [("select cast(:secret as int)", DataError), ("insert into service_state (name) values (:secret)", IntegrityError)],
)
def test_an_error_is_sqlalchemys_and_shows_no_value(database: Engine, sql: str, kind: type[Exception]) -> None:
    with database.connect() as connection, pytest.raises(kind) as raised:
        run(connection, sql, {"secret": "a prompt"})
    assert "a prompt" not in str(raised.value)
    with database.connect() as connection:
        assert run(connection, "select 1 as one")[0].one == 1


def test_after_a_lost_server_only_one_use_fails(database: Engine) -> None:
    connections = [database.connect() for _ in range(3)]
    pids = [run(connection, "select pg_backend_pid() as pid")[0].pid for connection in connections]
    for connection in connections:
        connection.close()
    other = make_engine(database.url.render_as_string(hide_password=False), pool_size=1, autocommit=True)
    with other.connect() as connection:
        run(connection, "select pg_terminate_backend(pid) from unnest(cast(:pids as int[])) as pid", {"pids": pids})
    other.dispose()
    with database.connect() as connection, pytest.raises(OperationalError) as raised:
        run(connection, "select 1")
    assert raised.value.connection_invalidated
    for _ in range(3):
        with database.connect() as connection:
            assert run(connection, "select 1 as one")[0].one == 1

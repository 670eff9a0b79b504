"""Magnus works on databases whose administrators chose other session settings, and refuses other encodings."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import NotSupportedError

from models.connections.database_errors import explain
from models.connections.session import PINNED, make_engine

CHOSEN = {
    "datestyle": "SQL, DMY",
    "extra_float_digits": "0",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "client_encoding": "SQL_ASCII",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "timezone": "Asia/Kathmandu",
    "synchronous_commit": "local",
}
SHOWN = "select current_setting(name) from unnest(cast(:names as text[])) as name"


@pytest.fixture
def chosen(database_url: str) -> str:
    """The URL of a database with every one of CHOSEN."""
    name = make_url(database_url).database
    with psycopg.connect(database_url, autocommit=True) as connection:
        for setting, value in CHOSEN.items():
            connection.execute(f"alter database {name} set {setting} = {value if ',' in value else repr(value)}")
    return database_url


@pytest.mark.parametrize("autocommit", [False, True])
def test_what_statements_rely_on_is_the_same_on_every_database(chosen: str, autocommit: bool) -> None:
    engine = make_engine(chosen, pool_size=1, autocommit=autocommit)
    with engine.connect() as connection:
        assert list(connection.scalars(text(SHOWN), {"names": list(PINNED)})) == list(PINNED.values())
        used = ["transaction_isolation", "timezone", "client_encoding"]
        assert list(connection.scalars(text(SHOWN), {"names": used})) == ["read committed", "UTC", "UTF8"]
        third = connection.scalar(text("select 0.1::float8 + 0.2::float8"))
        assert third == 0.1 + 0.2
        at = "2026-11-26 04:05:06.789012+00"
        assert str(connection.scalar(text("select cast(:at as timestamptz)"), {"at": at})) == f"{at}:00"
        assert connection.scalar(text("select 'grüße 漢字 😀'")) == "grüße 漢字 😀"
    engine.dispose()


@pytest.mark.parametrize(("durable", "waits_for"), [(True, "local"), (False, "off")])
def test_a_commit_waits_for_the_disk_as_the_database_says_unless_it_need_not_be_durable(
    chosen: str, durable: bool, waits_for: str
) -> None:
    engine = make_engine(chosen, pool_size=1, durable=durable)
    with engine.connect() as connection:
        assert connection.scalar(text("show synchronous_commit")) == waits_for
    engine.dispose()


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def other_encoding(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[tuple[str, str]]:
    """The URL of a database with this encoding, and its name."""
    name = f"encoded_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            f"create database {name} encoding '{request.param}' locale 'C' locale_provider libc template template0"
        )
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False), request.param
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


def test_another_encoding_is_refused_in_one_line_with_the_remedy(other_encoding: tuple[str, str]) -> None:
    url, encoding = other_encoding
    with pytest.raises(NotSupportedError) as refused, make_engine(url, pool_size=1).connect():
        pass
    line = explain(refused.value)
    assert f"the database's encoding is {encoding}, not UTF8; create another" in line
    assert "encoding 'UTF8' template template0" in line

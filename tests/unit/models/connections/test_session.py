"""Every usual spelling of a database's URL gives the psycopg 3 driver."""

import pytest

from models.connections.session import database_url


@pytest.mark.parametrize(
    "given",
    [
        "postgres://user:secret@host:5432/magnus",
        "postgresql://user:secret@host:5432/magnus",
        "postgresql+psycopg://user:secret@host:5432/magnus",
        "postgresql+psycopg2://user:secret@host:5432/magnus",
    ],
)
def test_each_spelling_of_the_scheme_gives_the_same_url(given: str) -> None:
    url = database_url(given).render_as_string(hide_password=False)
    assert url == "postgresql+psycopg://user:secret@host:5432/magnus"


def test_a_password_that_looks_like_a_scheme_stays_as_it_is() -> None:
    assert database_url("postgresql://user:postgres%3A%2F%2F@host/magnus").password == "postgres://"


def test_query_parameters_of_the_url_are_kept() -> None:
    url = database_url("postgres:///magnus?host=/run/postgresql")
    assert (url.database, url.query["host"]) == ("magnus", "/run/postgresql")

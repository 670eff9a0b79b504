"""API keys: shown once, stored as digests, revoked for good."""

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from models.connections.session import make_engine
from models.tenants import api_keys


@pytest.fixture
def session(database_url: str) -> Iterator[Session]:
    engine = make_engine(database_url)
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_a_key_is_found_by_itself_and_not_by_anything_else(session: Session) -> None:
    row, key = api_keys.create(session, name="ci", tenant="acme")
    found = api_keys.find(session.connection(), key)
    assert found is not None
    assert (found.key_id, found.tenant) == (row.id, "acme")
    assert api_keys.find(session.connection(), key[:-1]) is None
    assert api_keys.find(session.connection(), row.prefix) is None


def test_the_key_itself_is_not_stored(session: Session) -> None:
    row, key = api_keys.create(session, name="ci", tenant="acme")
    session.refresh(row)
    assert key.startswith(row.prefix)
    assert len(key) - len(row.prefix) > 30
    assert key.encode() not in row.sha256
    assert len(row.sha256) == 32


def test_a_revoked_key_is_no_longer_found_and_stays_in_the_list(session: Session) -> None:
    row, key = api_keys.create(session, name="ci", tenant="acme")
    _, other_key = api_keys.create(session, name="laptop", tenant="acme")
    assert api_keys.revoke(session, row.prefix) == 1
    assert api_keys.revoke(session, row.prefix) == 0
    session.expire_all()
    assert api_keys.find(session.connection(), key) is None
    assert api_keys.find(session.connection(), other_key) is not None
    assert [entry.name for entry in api_keys.list_all(session)] == ["ci", "laptop"]

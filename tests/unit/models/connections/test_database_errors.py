import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from models.connections.bounded_connection import DatabaseSilent, StatementTooSlow
from models.connections.database_errors import is_away, is_unreachable, message_without_values


@pytest.mark.parametrize("kind", [psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError])
def test_what_the_driver_refuses_is_not_quoted(kind: type[psycopg.Error]):
    assert message_without_values(kind("cannot adapt 'a secret'")) == "refused by the driver"


def test_a_failed_connection_is_described_in_full():
    message = 'connection failed: FATAL:  database "magnus" does not exist'
    assert message_without_values(psycopg.OperationalError(message)) == message


def test_the_first_line_is_kept_where_postgres_names_no_value():
    error = psycopg.errors.QueryCanceled("canceling statement due to statement timeout\nCONTEXT:  a secret")
    assert message_without_values(error) == "canceling statement due to statement timeout"


def test_only_the_state_is_kept_where_postgres_quotes_the_value():
    error = psycopg.errors.InvalidTextRepresentation('invalid input syntax for type integer: "a secret"')
    assert message_without_values(error) == "SQLSTATE 22P02"


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.DiskFull(), True),
        (psycopg.errors.QueryCanceled(), False),
        (psycopg.errors.UniqueViolation(), False),
    ],
)
def test_a_statement_may_succeed_later_once_the_server_works_or_is_a_primary_again(error: psycopg.Error, away: bool):
    assert is_away(DBAPIError.instance("select", None, error, psycopg.Error)) is away


@pytest.mark.parametrize(
    ("error", "unreachable"),
    [
        (psycopg.OperationalError("connection refused"), True),
        (psycopg.errors.ConnectionFailure(), True),
        (DatabaseSilent(), True),
        (StatementTooSlow(), False),
        (psycopg.errors.DiskFull(), False),
        (psycopg.errors.DeadlockDetected(), False),
    ],
)
def test_other_statements_are_worth_a_try_unless_there_is_no_connection(error: psycopg.Error, unreachable: bool):
    assert is_unreachable(DBAPIError.instance("select", None, error, psycopg.Error)) is unreachable
    assert is_away(DBAPIError.instance("select", None, error, psycopg.Error)) is not isinstance(error, StatementTooSlow)

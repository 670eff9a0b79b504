"""Engines and sessions of SQLAlchemy, which each process makes once, at its entry point.

A pooler such as PgBouncer in transaction mode gives each transaction another server connection: session settings would
affect other clients' statements, prepared statements would be unknown, and start-up options are refused. Behind a
pooler, therefore, each transaction applies its settings (`pooled_cursor.py`). Only the time zone, the date style and
the client's encoding are set once a session, because PgBouncer itself carries them over.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DisconnectionError, NotSupportedError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from models.connections.bounded_connection import BoundedConnection, DatabaseSilent, PostgresSilence
from models.connections.database_errors import hide_values
from models.connections.pooled_cursor import bring_settings

Given = ParamSpec("Given")
Result = TypeVar("Result")

# A connection that was idle for longer than this is pinged before it is used again. A busy web process then hardly ever
# pings; if the server is lost within this time after a use, the next statement fails instead. Not tuned.
PING_AFTER_IDLE_S = 2.0
# psycopg waits at least 2 s for a connection, whatever `connect_timeout` is.
CONNECT_WITHIN_S = 2
# The longest statements take seconds: the planner's first one with 100,000 queued rows, and the trainer's reads. A
# background process that waits longer waits for a frozen server, or for a network that lost its packets.
ANSWER_WITHIN_S = 30.0
# How long a process that is frozen within a transaction keeps its locks. It must exceed the time for which a planner
# decides between two statements, below 2 s with 100,000 queued rows, and let a stand-by take over within 15 s.
IDLE_IN_TRANSACTION_S = 8.0
# A wait for a lock may last longer than IDLE_IN_TRANSACTION_S, after which the lock of a frozen process is free.
LOCK_WITHIN_S = 10.0
# Settings on which Magnus's statements rely; administrators may have set other values for a role or a database. Floats
# must be exact, because a worker recognises its row by a float; transactions must see each other's commits; instants
# and bytes must come as plain texts.
PINNED = {
    "extra_float_digits": "1",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
}
# On TCP, a peer that vanished without closing the connection is noticed after about this long.
TCP_SILENCE_S = 10
TCP_BOUNDS = {
    "keepalives": 1,
    "keepalives_idle": TCP_SILENCE_S // 2,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": TCP_SILENCE_S * 1000,
}


def database_url(url: str) -> URL:
    """Returns the URL with the driver psycopg 3; accepts postgres:// and postgresql://."""
    return make_url(url.replace("postgres://", "postgresql://", 1)).set(drivername="postgresql+psycopg")


def make_engine(
    url: str,
    *,
    statement_timeout_s: float | None = None,
    answer_within_s: float | None = ANSWER_WITHIN_S,
    pool_size: int = 5,
    idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S,
    pool_timeout_s: float = 10.0,
    name: str = "magnus",
    autocommit: bool = False,
    generic_plans: bool = False,
    by_index: bool = False,
    durable: bool = True,
) -> Engine:
    """Returns a pool of at most `pool_size` connections, which pg_stat_activity shows as `name`. Errors show no values.

    `statement_timeout_s` bounds every statement and every wait for a lock on the server; the web process sets it, the
    background processes do not. `answer_within_s` bounds every wait, which then ends with OperationalError; None sets
    no bound. If a trivial statement has no answer either, every use raises it until the server answers again. With
    `autocommit` every statement is a transaction of its own, without round trips for begin and end. With
    `generic_plans` Postgres plans a statement once and not at each run, which suits look-ups of few rows by id. With
    `by_index` it reads no whole table that has an index. Without `durable`, a commit does not wait for the disk, which
    suits data that are written again: a crash may undo commits of Postgres's last 0.6 s that no durable one follows.
    """
    session_settings = {**PINNED, "idle_in_transaction_session_timeout": str(round(idle_in_transaction_s * 1000))}
    if answer_within_s is not None:
        session_settings["lock_timeout"] = str(round(LOCK_WITHIN_S * 1000))
    if statement_timeout_s is not None:
        session_settings["statement_timeout"] = str(round(statement_timeout_s * 1000))
    if not durable:
        session_settings["synchronous_commit"] = "off"  # waiting took 0.27 ms of CPU time a commit in Postgres
    if generic_plans:
        session_settings["plan_cache_mode"] = "force_generic_plan"
    if by_index:
        session_settings["enable_seqscan"] = "off"
    connect_args = {
        "application_name": name,
        "connect_timeout": CONNECT_WITHIN_S,
        "client_encoding": "utf8",
        **TCP_BOUNDS,
    }
    engine = create_engine(
        database_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=pool_timeout_s,
        connect_args=connect_args,
        hide_parameters=True,  # parameters are prompts and answers, and errors are logged
        **({"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None} if autocommit else {}),
    )
    hide_values(engine)
    if answer_within_s is not None:
        _bound_waits(engine, answer_within_s, connect_args)
    apply_session_settings(engine, session_settings)
    _ping_after_idle(engine)
    return engine


@contextmanager
def brief_engine(url: str, name: str) -> Iterator[Engine]:
    """Yields a pool of one connection and closes it afterwards."""
    engine = make_engine(url, pool_size=1, name=name)
    try:
        yield engine
    finally:
        engine.dispose()


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Returns a factory of sessions whose objects stay readable after commit."""
    return sessionmaker(engine, expire_on_commit=False)


def _bound_waits(engine: Engine, answer_within_s: float, connect_args: Mapping[str, Any]) -> None:
    def connect() -> BoundedConnection:
        arguments, parameters = engine.dialect.create_connect_args(engine.url)
        given: dict[str, Any] = {**parameters, **connect_args}
        return BoundedConnection.connect(*arguments, **given)

    silence = PostgresSilence(answer_within_s, connect)

    @event.listens_for(engine, "do_connect")
    def connected(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> BoundedConnection:
        silence.check()
        try:
            connection = BoundedConnection.connect(*arguments, **parameters)
        except psycopg.errors.ConnectionTimeout:
            silence.begin()
            raise
        except psycopg.Error:
            silence.end()  # the server answers, although it refuses
            raise
        silence.end()
        connection.within_s, connection.silence = answer_within_s, silence
        return connection

    @event.listens_for(engine, "checkout")
    def checked_out(connection: Any, record: Any, proxy: Any) -> None:
        try:
            silence.check()
        except DatabaseSilent as error:
            raise OperationalError(None, None, error) from error


def _ping_after_idle(engine: Engine) -> None:
    # SQLAlchemy's pool_pre_ping pings before every use, which took a third of the web process's time with Postgres.
    @event.listens_for(engine, "checkin")
    def checked_in(connection: Any, record: Any) -> None:
        record.info["idle_since"] = monotonic()

    @event.listens_for(engine, "checkout")
    def checked_out(connection: Any, record: Any, proxy: Any) -> None:
        if monotonic() - record.info.get("idle_since", monotonic()) < PING_AFTER_IDLE_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except DatabaseSilent as error:
            record.invalidate()  # after a DisconnectionError the pool would wait once more, for a new connection
            raise OperationalError(None, None, error) from error
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # the pool opens a new connection


POOLED = "pooled"  # key in a connection's info: whether a pooler is between this process and Postgres


def apply_session_settings(engine: Engine, settings: Mapping[str, str]) -> None:
    """Applies settings to each connection, or behind a pooler to each transaction."""
    of_session = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        autocommit, connection.autocommit = connection.autocommit, True
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":  # texts would be refused, or stored as other texts
            wrong = psycopg.NotSupportedError(f"the database's encoding is {encoding}, not UTF8")
            raise NotSupportedError(None, None, wrong)
        connection.execute("set timezone to 'UTC'")
        connection.execute("set datestyle to 'ISO'")
        # A pooler answers the start of a session itself, with a process id that is not the server's.
        (server_pid,) = connection.execute("select pg_backend_pid()").fetchone()
        record.info[POOLED] = server_pid != connection.info.backend_pid
        if record.info[POOLED]:
            bring_settings(connection, settings)
        elif settings:
            connection.execute(f"select {of_session}")
        connection.autocommit = autocommit


def is_pooled(connection: Connection) -> bool:
    """Returns whether a pooler is between this connection and Postgres."""
    return bool(connection.info[POOLED])


def in_session(
    sessions: sessionmaker[Session], query: Callable[Concatenate[Session, Given], Result]
) -> Callable[Given, Result]:
    """Returns the query as a function that opens a session of its own for each call."""

    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with sessions() as session:
            return query(session, *args, **kwargs)

    return run


def in_transaction(engine: Engine, query: Callable[Concatenate[Connection, Given], Result]) -> Callable[Given, Result]:
    """Returns the query as a function that runs in a transaction of its own for each call."""

    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with engine.begin() as connection:
            return query(connection, *args, **kwargs)

    return run


def in_connection(engine: Engine, query: Callable[Concatenate[Connection, Given], Result]) -> Callable[Given, Result]:
    """Returns the query as a function that takes a connection for each call; the engine must be in autocommit."""

    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with engine.connect() as connection:
            return query(connection, *args, **kwargs)

    return run

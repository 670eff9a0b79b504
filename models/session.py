"""Connections to Postgres: engines and sessions, made once by a process at its entry point."""

from time import monotonic
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.orm import Session, sessionmaker

IDLE_S = 2.0  # a connection that rested for so long is asked whether it still lives before it is used again


def database_url(url: str) -> URL:
    """The same address for the psycopg 3 driver, whichever way it was written (postgres://, postgresql://)."""
    return make_url(url.replace("postgres://", "postgresql://", 1)).set(drivername="postgresql+psycopg")


def make_engine(
    url: str,
    *,
    statement_timeout_s: float | None = None,
    pool_size: int = 5,
    name: str = "magnus",
    autocommit: bool = False,
) -> Engine:
    """A pool of at most `pool_size` connections; `name` is what pg_stat_activity shows.

    `statement_timeout_s` bounds every statement and every wait for a lock; the web gives one, long claims do not.
    With `autocommit` every statement is a transaction of its own and saves the round trips of begin and end.
    """
    options = ["-c timezone=UTC"]
    if statement_timeout_s is not None:
        options.append(f"-c statement_timeout={round(statement_timeout_s * 1000)}")
    engine = create_engine(
        database_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=10,
        connect_args={"options": " ".join(options), "application_name": name, "connect_timeout": 5},
        **({"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None} if autocommit else {}),
    )
    _ping_when_rested(engine)
    return engine


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after commit."""
    return sessionmaker(engine, expire_on_commit=False)


def _ping_when_rested(engine: Engine) -> None:
    # SQLAlchemy's own pool_pre_ping asks before every use: a third of the web's time with Postgres.
    @event.listens_for(engine, "checkin")
    def rest(connection: Any, record: Any) -> None:
        record.info["rests_since"] = monotonic()

    @event.listens_for(engine, "checkout")
    def ping(connection: Any, record: Any, proxy: Any) -> None:
        if monotonic() - record.info.get("rests_since", monotonic()) < IDLE_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # the pool opens another

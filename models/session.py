"""Connections to Postgres: SQLAlchemy engines and sessions, made once by each process at its entry point."""

from time import monotonic
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.orm import Session, sessionmaker

from models.session_settings import apply_session_settings

# A connection that was idle for longer is pinged before it is used again. A busy web process then hardly ever pings; if
# the server is lost within this time after a use, the next statement fails instead. Not tuned.
PING_AFTER_IDLE_S = 2.0


def database_url(url: str) -> URL:
    """The URL with the psycopg 3 driver; accepts postgres:// and postgresql://."""
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

    `statement_timeout_s` bounds every statement and every wait for a lock; the web process gives one, the background
    processes do not. With `autocommit` every statement is its own transaction, without round trips for begin and end.
    """
    session_settings = {}
    if statement_timeout_s is not None:
        session_settings["statement_timeout"] = str(round(statement_timeout_s * 1000))
    engine = create_engine(
        database_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=10,
        connect_args={"application_name": name, "connect_timeout": 5},
        **({"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None} if autocommit else {}),
    )
    apply_session_settings(engine, session_settings)
    _ping_after_idle(engine)
    return engine


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after commit."""
    return sessionmaker(engine, expire_on_commit=False)


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
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # the pool opens a new connection

"""Connections to Postgres: engines and sessions, made once by a process at its entry point."""

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.orm import Session, sessionmaker


def database_url(url: str) -> URL:
    """The same address for the psycopg 3 driver, whichever way it was written (postgres://, postgresql://)."""
    return make_url(url.replace("postgres://", "postgresql://", 1)).set(drivername="postgresql+psycopg")


def make_engine(
    url: str, *, statement_timeout_s: float | None = None, pool_size: int = 5, name: str = "magnus"
) -> Engine:
    """A pool of at most `pool_size` connections, each checked before use; `name` is what pg_stat_activity shows.

    `statement_timeout_s` bounds every statement and every wait for a lock; the web gives one, long claims do not.
    """
    options = ["-c timezone=UTC"]
    if statement_timeout_s is not None:
        options.append(f"-c statement_timeout={round(statement_timeout_s * 1000)}")
    return create_engine(
        database_url(url),
        pool_pre_ping=True,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=10,
        connect_args={"options": " ".join(options), "application_name": name, "connect_timeout": 5},
    )


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after commit."""
    return sessionmaker(engine, expire_on_commit=False)

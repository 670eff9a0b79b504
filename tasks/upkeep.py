"""The task `tasks.upkeep`: closes the minutes of the history and deletes what is old, at beat's slower tick."""

from functools import cache

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models import minute_history, retention
from models.session import make_engine, make_sessions
from tasks.app import app, database_url, settings

CHUNK = 2000  # rows deleted at once, so that nobody waits for their locks
WORKERS_FORGOTTEN_S = 86_400.0

log = structlog.get_logger()


@cache
def database() -> Engine:
    """This process's connection for upkeep."""
    return make_engine(database_url, pool_size=1, name="magnus upkeep")


@app.task(name="tasks.upkeep", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def keep_up() -> None:
    """Do a little of everything; an error is logged and the next tick begins anew."""
    try:
        with make_sessions(database())() as session:
            minute_history.close_minutes(session)
        with database().begin() as connection:
            retention.delete_old_workers(connection, WORKERS_FORGOTTEN_S)
            retention.delete_superseded_versions(connection)
        for delete in (retention.delete_old_requests, retention.delete_old_batches):
            with database().begin() as connection:
                deleted = delete(connection, settings.retention_s, CHUNK)
            if deleted:
                log.info("deleted", what=delete.__name__, rows=deleted)
    except SQLAlchemyError as error:
        log.error("upkeep failed", error=str(error))

"""The task `tasks.upkeep`: closes the history's minutes and deletes old rows, a chunk at a time, every 10 s."""

from functools import cache

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models import minute_history, retention
from models.session import make_engine, make_sessions
from tasks.app import app, database_url, settings

# Rows that one statement deletes. A larger chunk holds locks for longer, a smaller one deletes less in a tick: 2,000
# rows every 10 s keep up with 200 requests a second. Not tuned otherwise.
DELETED_AT_ONCE = 2000
# A worker that stopped a day ago is dropped from the table; until then the dashboard still shows it. Not tuned.
FORGET_WORKERS_AFTER_S = 86_400.0
# A process that was killed is remembered for so long; its successor has a heartbeat of its own. Not tuned.
FORGET_PROCESSES_AFTER_S = 600.0

log = structlog.get_logger()


@cache
def database() -> Engine:
    """This process's database connection for upkeep."""
    return make_engine(database_url, pool_size=1, name="magnus upkeep")


@app.task(name="tasks.upkeep", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def upkeep() -> None:
    """Do one chunk of each chore; an error is logged, and the next tick tries again."""
    try:
        with make_sessions(database())() as session:
            minute_history.close_minutes(session)
        with database().begin() as connection:
            retention.delete_old_workers(connection, FORGET_WORKERS_AFTER_S)
            retention.delete_old_heartbeats(connection, FORGET_PROCESSES_AFTER_S)
            retention.delete_superseded_versions(connection)
        for delete in (retention.delete_old_requests, retention.delete_old_batches):
            with database().begin() as connection:
                deleted = delete(connection, settings.retention_s, DELETED_AT_ONCE)
            if deleted:
                log.info("deleted", what=delete.__name__, rows=deleted)
    except SQLAlchemyError as error:
        log.error("upkeep failed", error=str(error))

"""The task `tasks.upkeep`: closes the history's minutes and deletes old rows, a chunk at a time, every 10 s.

Without ticks the process that has it does it by itself.
"""

from functools import cache

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from celery_config import UPKEEP_EVERY_S
from models import minute_history, retention
from models.session import make_engine, make_sessions
from tasks.app import app, database_url, settings
from tasks.regular_work import RegularWork

# Rows that one statement deletes. A larger chunk holds locks for longer, a smaller one deletes less in a tick: 2,000
# rows every 10 s keep up with 200 requests a second. Not tuned otherwise.
DELETED_AT_ONCE = 2000
# A worker that stopped a day ago is dropped from the table; until then the dashboard still shows it. Not tuned.
FORGET_WORKERS_AFTER_S = 86_400.0

log = structlog.get_logger()


@cache
def database() -> Engine:
    """This process's database connection for upkeep."""
    return make_engine(database_url, pool_size=1, name="magnus upkeep")


def do_chores() -> None:
    """Do one chunk of each chore; an error is logged, and the next tick tries again."""
    try:
        with make_sessions(database())() as session:
            minute_history.close_minutes(session)
        with database().begin() as connection:
            retention.delete_old_workers(connection, FORGET_WORKERS_AFTER_S)
            retention.delete_superseded_versions(connection)
        for delete in (retention.delete_old_requests, retention.delete_old_batches):
            with database().begin() as connection:
                deleted = delete(connection, settings.retention_s, DELETED_AT_ONCE)
            if deleted:
                log.info("deleted", what=delete.__name__, rows=deleted)
    except SQLAlchemyError as error:
        log.error("upkeep failed", error=str(error))


regular_upkeep = RegularWork("upkeep", do_chores, 3 * UPKEEP_EVERY_S)


@app.task(name="tasks.upkeep", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def upkeep() -> None:
    """The chores."""
    regular_upkeep()

"""The task `tasks.upkeep`: does the chores, every 10 s."""

from functools import cache

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.session import make_engine
from tasks.app import app, database_url, settings
from tasks.chores import do_chores

log = structlog.get_logger()


@cache
def database() -> Engine:
    """This process's database connection for upkeep."""
    return make_engine(database_url, pool_size=1, name="magnus upkeep")


@app.task(name="tasks.upkeep", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def upkeep() -> None:
    """Do each chore for a while; an error is logged, and the next tick tries again."""
    try:
        do_chores(database(), settings.retention_s)
    except SQLAlchemyError as error:
        log.error("upkeep failed", error=str(error))

"""The task `tasks.upkeep`: does the chores, every 10 s; without ticks the process that has it does them by itself."""

from functools import cache

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from celery_config import UPKEEP_EVERY_S
from models.session import make_engine
from tasks.app import app, database_url, settings
from tasks.chores import do_chores
from tasks.liveness.regular_work import RegularWork
from tasks.trace_export import export_traces

log = structlog.get_logger()


@cache
def database() -> Engine:
    """This process's database connection for upkeep."""
    return make_engine(database_url, pool_size=1, name="magnus upkeep")


def keep_up() -> None:
    """Do each chore for a while; an error is logged, and the next tick tries again."""
    try:
        do_chores(database(), settings.retention_s)
        if settings.traces_url is not None:
            export_traces(database(), settings.traces_url)
    except SQLAlchemyError as error:
        log.error("upkeep failed", error=str(error))


regular_upkeep = RegularWork("upkeep", keep_up, 3 * UPKEEP_EVERY_S)


@app.task(name="tasks.upkeep", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def upkeep() -> None:
    """The chores."""
    regular_upkeep()

"""The bulk jobs' work, beside the predictor's: a thread of its process looks regularly, and works while it can.

Not a task of Celery: no message needs to be waited for, and a step that takes long must not delay the others' ticks.
"""

from functools import cache

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.bulk.bulk_jobs import any_unended
from models.session import make_engine
from tasks.app import database_url, settings
from tasks.bulk.job_progress import look_after_jobs
from tasks.bulk.line_feeder import LineFeeder
from tasks.liveness.regular_work import RegularWork
from webapp.limits.prompt_limits import PromptLimits, prompt_limits_of

LOOK_EVERY_S = 1.0  # while a job has not ended; its next lines and its counts wait so long. Not tuned
# While there is none: a new job, which has hours, waits so long for its first line, and a service without jobs pays a
# short query. Not tuned.
IDLE_LOOK_EVERY_S = 2.5
FEED_FOR_S = 10.0  # of one piece of work; well below what counts as hanging. Not tuned otherwise
PROGRESS_FOR_S = 5.0
# Lines are read within a transaction that has their job's row; on a busy machine that takes seconds.
IDLE_IN_TRANSACTION_S = 60.0

log = structlog.get_logger()


@cache
def database() -> Engine:
    """This process's database connection for bulk jobs."""
    return make_engine(database_url, pool_size=1, name="magnus bulk jobs", idle_in_transaction_s=IDLE_IN_TRANSACTION_S)


@cache
def looks() -> Engine:
    """The same, for a question that is one statement: without round trips for begin and end."""
    return database().execution_options(isolation_level="AUTOCOMMIT")


@cache
def limits() -> PromptLimits:
    """What the API checks lines by, with the served model's tokenizer."""
    return prompt_limits_of(settings)


@cache
def feeder() -> LineFeeder:
    """This process's feeder."""
    return LineFeeder(
        database(), limits, max_requests=settings.tenant_queued_requests, max_tokens=settings.tenant_queued_tokens
    )


def work() -> None:
    """Queue lines, then count ends; an error is logged, and the next turn tries again."""
    try:
        with looks().connect() as connection:
            busy = any_unended(connection)
        regular_bulk_work.work_every(LOOK_EVERY_S if busy else IDLE_LOOK_EVERY_S)
        if not busy:
            return
        feeder().feed(FEED_FOR_S)
        look_after_jobs(database(), PROGRESS_FOR_S)
    except SQLAlchemyError as error:
        log.error("bulk work failed", error=str(error))


regular_bulk_work = RegularWork("bulk jobs", work, LOOK_EVERY_S)

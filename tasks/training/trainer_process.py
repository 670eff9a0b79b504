"""The trainer's process, `python -m tasks.training.trainer_process`: runs both refit jobs at their intervals.

Among several trainers only the one whose connection holds the trainer's lock runs its jobs; the others stand by.
"""

import signal
import sys
from collections.abc import Callable
from threading import Event

import structlog
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from learning.features.text_encoders import make_encoder
from models import training_log
from models.session import make_engine
from settings import end_with
from tasks import logs
from tasks.app import database_url, settings
from tasks.heartbeat import Heartbeat
from tasks.training.refit_jobs import RefitJobs

# How often a trainer tries to take the lock, or checks that its connection still holds it. Refits come every few
# minutes, so any value well below their intervals does.
LOCK_CHECK_S = 5.0
EARLY_CHECK_S = 5.0  # between looks at whether answers have doubled: a count of at most 4,000 rows. Not tuned.

log = structlog.get_logger()


def main() -> int:
    """Refit until SIGTERM or SIGINT; returns the process's exit status."""
    logs.configure(settings.log_level)
    stopping = Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    database = make_engine(database_url, pool_size=3, name="magnus trainer")
    try:
        encoder = make_encoder(settings.encoder)
    except (OSError, ValueError) as error:
        end_with(f"MAGNUS_ENCODER: {settings.encoder} cannot be loaded: {next(iter(str(error).splitlines()), '')}")
    jobs = RefitJobs(database, settings.predictor, encoder)
    scheduler = BackgroundScheduler(
        timezone="UTC",
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        executors={"default": {"type": "threadpool", "max_workers": 1}},
    )
    scheduler.add_job(_guarded(jobs.refit_length_early), "interval", seconds=EARLY_CHECK_S)
    scheduler.add_job(_guarded(jobs.refit_length), "interval", seconds=settings.train_length_every_s)
    scheduler.add_job(_guarded(jobs.refit_serving_time), "interval", seconds=settings.train_serving_every_s)
    scheduler.start(paused=True)
    heartbeat = Heartbeat("trainer", database_url)
    heartbeat.start()
    while not stopping.is_set():
        _run_while_leading(database, scheduler, stopping)
    scheduler.shutdown()
    heartbeat.stop()
    return 0


def _run_while_leading(database: Engine, scheduler: BackgroundScheduler, stopping: Event) -> None:
    """Wait for the trainer's lock, then let the jobs run until the connection is lost or the process stops."""
    try:
        with database.connect() as connection:
            while not _lead(connection):
                if stopping.wait(LOCK_CHECK_S):
                    return
            scheduler.resume()
            while not stopping.wait(LOCK_CHECK_S):
                _lead(connection)  # raises once the connection is gone, and the lock with it
    except SQLAlchemyError as error:
        log.warning("database away", error=str(error))
        stopping.wait(LOCK_CHECK_S)
    finally:
        scheduler.pause()


def _lead(connection: Connection) -> bool:
    with connection.begin():
        return training_log.try_to_lead(connection)


def _guarded(job: Callable[[], None]) -> Callable[[], None]:
    """The job with its errors logged: an error ends only this run of it."""

    def run() -> None:
        try:
            job()
        except Exception:
            log.exception("refit failed")

    return run


if __name__ == "__main__":
    sys.exit(main())

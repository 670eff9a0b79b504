"""The trainer's process, `python -m tasks.training.trainer_process`: refits both models by its own clock."""

import signal
import sys
from collections.abc import Callable
from threading import Event as Flag

import structlog
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from learning.features.text_encoders import make_encoder
from models import training_log
from models.session import make_engine
from tasks import logs
from tasks.app import database_url, settings
from tasks.training.trainer import Trainer

RETRY_S = 5.0

log = structlog.get_logger()


def main() -> int:
    """Train until SIGTERM or SIGINT; the process's exit status."""
    logs.configure(settings.log_level)
    stopping = Flag()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    database = make_engine(database_url, pool_size=3, name="magnus trainer")
    trainer = Trainer(database, settings.predictor, make_encoder(settings.encoder))
    scheduler = BackgroundScheduler(
        timezone="UTC",
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        executors={"default": {"type": "threadpool", "max_workers": 1}},
    )
    scheduler.add_job(_guarded(trainer.refit_length), "interval", seconds=settings.train_length_every_s)
    scheduler.add_job(_guarded(trainer.refit_serving_time), "interval", seconds=settings.train_serving_every_s)
    scheduler.start(paused=True)
    while not stopping.is_set():
        _lead_for_a_while(database, scheduler, stopping)
    scheduler.shutdown()
    return 0


def _lead_for_a_while(database: Engine, scheduler: BackgroundScheduler, stopping: Flag) -> None:
    """Let the jobs run for as long as a connection holds the trainer's lock."""
    try:
        with database.connect() as connection:
            while not _leads(connection):
                if stopping.wait(RETRY_S):
                    return
            scheduler.resume()
            while not stopping.wait(RETRY_S):
                _leads(connection)  # raises once the connection is gone, and the lock with it
    except SQLAlchemyError as error:
        log.warning("database away", error=str(error))
        stopping.wait(RETRY_S)
    finally:
        scheduler.pause()


def _leads(connection: Connection) -> bool:
    with connection.begin():
        return training_log.try_to_lead(connection)


def _guarded(job: Callable[[], None]) -> Callable[[], None]:
    """The job, whose errors are logged and end only this run of it."""

    def run() -> None:
        try:
            job()
        except Exception:
            log.exception("refit failed")

    return run


if __name__ == "__main__":
    sys.exit(main())

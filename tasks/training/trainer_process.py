"""The trainer's process: runs both refit jobs at their intervals while it holds the trainer's lead."""

import signal
import sys
from threading import Event

import structlog
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from learning.features.text_encoders import UnusableEncoder
from learning.predictors.predictor_factory import NeedsModel
from models import training_log
from models.planning import leadership
from models.planning.leadership import Lead, LeadLost
from models.session import make_engine
from processes import json_logs
from processes.hosted_process import HostedProcess
from processes.loop import Loop
from processes.signs_of_life import Heartbeat
from setting_mistakes import end_with
from tasks.app import database_url, settings
from tasks.prediction.predictor_in_service import make_configured
from tasks.training.refit_jobs import FIRST_REFIT_BATCHES, EarlyRefits
from tasks.training.refit_processes import RefitProcesses

# Seconds between two renewals of the lead, or two tries to take it. Refits come every few minutes, so any value well
# below their intervals works.
LEAD_CHECK_S = 3.0
LEAD_S = 12.0  # a frozen trainer is replaced after this long; four times LEAD_CHECK_S
# seconds between two checks whether answers have doubled: a count of at most 4,000 rows. Not tuned.
EARLY_CHECK_S = 5.0

log = structlog.get_logger()


def main() -> int:
    """Refit until SIGTERM or SIGINT; returns the process's exit status."""
    json_logs.configure_background(settings.log_level)
    stopping = Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    try:
        make_configured(settings)
    except NeedsModel as error:
        end_with(f"MAGNUS_PREDICTOR: {error}; MAGNUS_MODEL is {settings.model}")
    except UnusableEncoder as error:
        end_with(f"MAGNUS_ENCODER: {error}")
    database = make_engine(database_url, pool_size=2, name="magnus trainer")
    refits = RefitProcesses()
    early = [
        EarlyRefits(database, refits.refit_length),
        EarlyRefits(database, refits.refit_serving_time, training_log.count_batches, FIRST_REFIT_BATCHES),
    ]
    scheduler = BackgroundScheduler(
        timezone="UTC",
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        executors={"default": {"type": "threadpool", "max_workers": 1}},
    )
    jobs = [
        (refits.refit_length, settings.train_length_every_s),
        (refits.refit_serving_time, settings.train_serving_every_s),
    ]
    if settings.magnus != "published":  # the paper refits at its intervals alone
        jobs += [(each.refit_if_due, EARLY_CHECK_S) for each in early]
    loops = []
    for job, every_s in jobs:
        loop = Loop("refit", job, every_s)  # only its `step` is used: an error ends one refit, and is known
        scheduler.add_job(loop.step, "interval", seconds=every_s)
        loops.append(loop)
    scheduler.start(paused=True)
    # a refit may take minutes
    process = HostedProcess([Heartbeat("trainer", database_url, loops, busy_s=lambda: 0.0)])
    process.start()
    while not stopping.is_set():
        _run_while_leading(database, refits, scheduler, stopping)
    scheduler.shutdown()
    process.stop()
    return 0


def _run_while_leading(
    database: Engine, refits: RefitProcesses, scheduler: BackgroundScheduler, stopping: Event
) -> None:
    """Wait for the trainer's lead, then let the jobs run until it is lost or the process stops."""
    try:
        while (lead := _take_the_lead(database, refits.lead)) is None:
            if stopping.wait(LEAD_CHECK_S):
                return
        refits.lead = lead
        scheduler.resume()
        while not stopping.wait(LEAD_CHECK_S):
            with database.begin() as connection:
                leadership.renew(connection, lead, LEAD_S)
        with database.begin() as connection:
            leadership.give_up(connection, lead)
    except (SQLAlchemyError, LeadLost) as error:
        log.warning("not leading", error=str(error))
        stopping.wait(LEAD_CHECK_S)
    finally:
        scheduler.pause()


def _take_the_lead(database: Engine, mine: Lead | None) -> Lead | None:
    with database.begin() as connection:
        return leadership.take(connection, "trainer", LEAD_S, mine=mine)


if __name__ == "__main__":
    sys.exit(main())

"""The trainer's process: runs both refit jobs at their intervals while it holds the trainer's lead."""

import logging
import os
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
from models.connections.session import in_transaction, make_engine
from models.planning import leadership
from models.planning.leadership import LeadLost
from processes import json_logs
from processes.celery.celery_app import celery_service
from processes.configured_predictor import make_configured
from processes.hosted_process import HostedProcess
from processes.launch import lower_priority
from processes.loop import Loop
from processes.planner_rules import planner_rules
from processes.signs_of_life import Heartbeat
from setting_mistakes import end_with
from tasks.training.refit_jobs import FIRST_REFIT_BATCHES, EarlyRefits
from tasks.training.refit_processes import RefitProcesses
from tasks.training.shadow_policy import ShadowPolicy

# Seconds between two renewals of the lead, or two tries to take it. Refits come every few minutes, so any value well
# below their intervals works.
LEAD_CHECK_S = 3.0
LEAD_S = 12.0  # another trainer replaces a frozen one after this long; four times LEAD_CHECK_S
# seconds between two checks whether answers have doubled; a check counts at most 4,000 rows. Not tuned.
EARLY_CHECK_S = 5.0

log = structlog.get_logger()


def main() -> None:
    """Refit until SIGTERM or SIGINT, then end the process; a refit that is running ends with it."""
    service = celery_service()
    settings, database_url = service.settings, service.database_url
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
    # not before the start is done: it takes seconds of CPU, at this priority over half a minute beside busy processes
    lower_priority(int(sys.argv[1]) if sys.argv[1:] else 0)
    database = make_engine(database_url, pool_size=2, name="magnus trainer")
    refits = RefitProcesses(settings, database_url)
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
        (refits.refit_length, settings.parameters.refit_length_s),
        (refits.refit_serving_time, settings.parameters.refit_serving_s),
    ]
    if settings.parameters.magnus != "published":  # the paper refits at its intervals alone
        jobs += [(each.refit_if_due, EARLY_CHECK_S) for each in early]
    loops = []
    for job, every_s in jobs:
        loop = Loop("refit", job, every_s)  # only its `step` is used, so that an error ends one refit and is reported
        scheduler.add_job(loop.step, "interval", seconds=every_s)
        loops.append(loop)
    # a check that is due during a long refit is left out on purpose; APScheduler warned of that every ten seconds
    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)
    scheduler.start(paused=True)
    # no busy time counts as hanging, because a refit may take minutes
    heartbeat = Heartbeat("trainer", database_url, loops, busy_s=lambda: 0.0)
    shadow = ShadowPolicy(
        make_engine(database_url, pool_size=1, name="magnus shadow policy"),
        settings.policy,
        planner_rules(settings).settings,
        settings.lease_s,
    )
    process = HostedProcess([heartbeat, shadow])
    process.start()
    while not stopping.is_set():
        _run_while_leading(database, refits, scheduler, stopping)
    scheduler.shutdown(wait=False)
    process.stop()
    sys.stdout.flush()
    os._exit(0)  # a regular end of Python would wait for the refit that is running, for minutes on a busy host


def _run_while_leading(
    database: Engine, refits: RefitProcesses, scheduler: BackgroundScheduler, stopping: Event
) -> None:
    """Waits for the trainer's lead, then lets the jobs run until the lead is lost or the process stops."""
    try:
        while (lead := in_transaction(database, leadership.take)("trainer", LEAD_S, mine=refits.lead)) is None:
            if stopping.wait(LEAD_CHECK_S):
                return
        refits.lead = lead
        scheduler.resume()
        while not stopping.wait(LEAD_CHECK_S):
            in_transaction(database, leadership.renew)(lead, LEAD_S)
        in_transaction(database, leadership.give_up)(lead)
    except (SQLAlchemyError, LeadLost) as error:
        log.warning("not leading", error=str(error))
        stopping.wait(LEAD_CHECK_S)
    finally:
        scheduler.pause()


if __name__ == "__main__":
    main()

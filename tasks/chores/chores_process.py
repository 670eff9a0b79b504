"""The process `chores`: upkeep, bulk jobs and webhooks. Any number may run, and no request waits for it."""

from functools import cache

from celery_config import UPKEEP_EVERY_S
from models.bulk.bulk_jobs import any_unended
from models.session import make_engine, make_sessions
from processes.hosted_process import HostedProcess
from processes.loop import Loop
from processes.signs_of_life import Heartbeat
from tasks.app import app, database_url, host, settings
from tasks.bounded_events import BoundedEvents
from tasks.chores.job_progress import update_jobs
from tasks.chores.line_feeder import LineFeeder
from tasks.chores.scaling_signals import ScalingMeter
from tasks.chores.shadow_policy import ShadowPolicy
from tasks.chores.trace_export import export_traces
from tasks.chores.upkeep import do_upkeep
from tasks.chores.webhook_sender import WebhookSender
from tasks.planning.planner_rules import planner_rules
from webapp.limits.prompt_limits import PromptLimits, prompt_limits_of

# Seconds between two checks of bulk jobs while one has not ended: its next lines and counts wait this long. Not tuned.
LOOK_EVERY_S = 1.0
# Seconds between two checks without a job: a new job, which has hours, waits this long for its first line, and a
# service without jobs runs a short query. Not tuned.
IDLE_LOOK_EVERY_S = 2.5
FEED_FOR_S = 10.0  # longest time of one check; well below the time that counts as hanging. Not tuned otherwise
PROGRESS_FOR_S = 5.0
# Lines are read within a transaction that locks their job's row; on a busy machine that takes seconds.
IDLE_IN_TRANSACTION_S = 60.0


upkeep_database = make_engine(database_url, pool_size=1, name="magnus upkeep")
bulk_database = make_engine(
    database_url, pool_size=1, name="magnus bulk jobs", idle_in_transaction_s=IDLE_IN_TRANSACTION_S
)


@cache
def limits() -> PromptLimits:
    """Returns the API's limits of a prompt; the first call loads the served model's tokenizer."""
    return prompt_limits_of(settings, make_sessions(bulk_database))


feeder = LineFeeder(
    bulk_database, limits, max_requests=settings.tenant_queued_requests, max_tokens=settings.tenant_queued_tokens
)


scaling = ScalingMeter(upkeep_database, settings.lease_s, settings.target_response_s)


def do_all_upkeep() -> None:
    """Do each part of the upkeep for a bounded time."""
    scaling.measure_if_due()
    do_upkeep(upkeep_database, settings.retention_s)
    if settings.traces_url is not None:
        export_traces(upkeep_database, settings.traces_url)


def work_on_bulk_jobs() -> None:
    """Queue lines, then count ended ones; without a job this is one short query."""
    # one statement: without round trips for begin and end
    with bulk_database.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        busy = any_unended(connection)
    bulk_loop.step_every(LOOK_EVERY_S if busy else IDLE_LOOK_EVERY_S)
    if busy:
        feeder.feed(FEED_FOR_S)
        update_jobs(bulk_database, PROGRESS_FOR_S)


upkeep_loop = Loop("upkeep", do_all_upkeep, 3 * UPKEEP_EVERY_S)
# Not a Celery task: nothing announces lines, and a long check must not delay the upkeep's ticks.
bulk_loop = Loop("bulk work", work_on_bulk_jobs, LOOK_EVERY_S)


@app.task(name="tasks.upkeep", send_events=False, Request=BoundedEvents)  # type: ignore[untyped-decorator]  # celery is untyped
def upkeep() -> None:
    """Do the upkeep at one of beat's ticks."""
    upkeep_loop.step()


host(
    HostedProcess(
        [
            upkeep_loop,
            bulk_loop,
            # autocommit, because claims and results are one statement each
            WebhookSender(
                make_engine(database_url, pool_size=1, name="magnus webhooks", autocommit=True),
                settings.private_webhooks,
            ),
            ShadowPolicy(upkeep_database, settings.policy, planner_rules(settings).settings, settings.lease_s),
            Heartbeat("chores", database_url, [upkeep_loop, bulk_loop]),
        ]
    )
)

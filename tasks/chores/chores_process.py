"""The process `chores`: upkeep, bulk jobs and webhooks. Any number may run, and no request waits for it."""

import sys
from functools import cache, partial

from celery_config import UPKEEP_EVERY_S
from models.bulk.bulk_jobs import any_unended
from models.connections.session import in_session, make_engine, make_sessions
from models.planning.live_fleet import served_adapters
from processes.celery.celery_app import CeleryService, on_ticks, run
from processes.hosted_process import HostedProcess
from processes.loop import Loop
from processes.signs_of_life import Heartbeat
from protocol.limits.prompt_limits import PromptLimits, prompt_limits_of
from tasks.chores.job_progress import update_jobs
from tasks.chores.line_feeder import LineFeeder
from tasks.chores.scaling_signals import ScalingMeter
from tasks.chores.trace_export import export_traces
from tasks.chores.upkeep import do_each, do_upkeep
from tasks.chores.webhook_sender import WebhookSender

# Bulk jobs are checked this often while a job has not ended; its next lines and counts wait this long. Not tuned.
LOOK_EVERY_S = 1.0
# Bulk jobs are checked this often while there is none: a new job, which has hours, waits this long for its first line,
# and each check is one short query. Not tuned.
IDLE_LOOK_EVERY_S = 2.5
FEED_FOR_S = 10.0  # one check feeds lines for at most this long, well below the time that counts as hanging. Not tuned
PROGRESS_FOR_S = 5.0  # one check then counts ended lines for this long


def chores(service: CeleryService) -> HostedProcess:
    """Makes the process with its loops, its task and its threads."""
    settings = service.settings
    upkeep_database = make_engine(service.database_url, pool_size=1, name="magnus upkeep")
    bulk_database = make_engine(service.database_url, pool_size=1, name="magnus bulk jobs")

    @cache
    def limits() -> PromptLimits:  # the first call loads the served model's tokenizer
        return prompt_limits_of(settings, in_session(make_sessions(bulk_database), served_adapters))

    feeder = LineFeeder(
        bulk_database,
        limits,
        max_requests=settings.tenant_queued_requests,
        max_tokens=settings.tenant_queued_tokens,
        max_bytes=settings.tenant_queued_bytes,
    )
    scaling = ScalingMeter(upkeep_database, settings.lease_s, settings.target_response_s)

    def do_all_upkeep() -> None:
        traces = [] if settings.traces_url is None else [partial(export_traces, upkeep_database, settings.traces_url)]
        do_each(scaling.measure_if_due, partial(do_upkeep, upkeep_database, settings.retention_s), *traces)

    def work_on_bulk_jobs() -> None:
        """Queue lines, then count ended ones; without a job this is one short query."""
        # autocommit saves the round trips for begin and end around this one statement
        with bulk_database.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            busy = any_unended(connection)
        bulk_loop.step_every(LOOK_EVERY_S if busy else IDLE_LOOK_EVERY_S)
        if busy:
            feeder.feed(FEED_FOR_S)
            update_jobs(bulk_database, PROGRESS_FOR_S)

    upkeep_loop = Loop("upkeep", do_all_upkeep, 3 * UPKEEP_EVERY_S)
    # This loop is no Celery task: nothing announces lines, and a long check must not delay the upkeep's ticks.
    bulk_loop = Loop("bulk work", work_on_bulk_jobs, LOOK_EVERY_S)
    on_ticks(service.app, "upkeep", upkeep_loop.step)
    # autocommit, because claims and results are one statement each
    webhooks = make_engine(service.database_url, pool_size=1, name="magnus webhooks", autocommit=True)
    heartbeat = Heartbeat("chores", service.database_url, [upkeep_loop, bulk_loop])
    return HostedProcess([upkeep_loop, bulk_loop, WebhookSender(webhooks, settings.private_webhooks), heartbeat])


if __name__ == "__main__":
    sys.exit(run(chores, "upkeep", "chores"))

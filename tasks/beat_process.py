"""Beat's process: Celery's beat with our scheduler, which measures the loop's turns, a heartbeat and a pulse."""

import atexit
from typing import Any

from celery import signals

from processes.hosted_process import HostedProcess
from processes.signs_of_life import Heartbeat
from tasks.app import app, database_url

__all__ = ["app"]  # `tasks.celery_process` runs it

# Beat sends two ticks every MAGNUS_TICK_S; a turn that takes longer than this counts as hanging. A frozen broker blocks
# it for a few times BROKER_TIMEOUT_S. Not tuned otherwise.
HANGS_AFTER_S = 30.0


@signals.beat_init.connect  # type: ignore[untyped-decorator]  # celery is untyped
def _begin(sender: Any, **_: Any) -> None:
    scheduler = sender.scheduler
    heartbeat = Heartbeat("beat", database_url, busy_s=lambda: scheduler.turn_s)
    process = HostedProcess([heartbeat], works=lambda: scheduler.turn_s < HANGS_AFTER_S)
    process.start()
    atexit.register(process.stop)

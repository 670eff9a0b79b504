"""Beat's process: Celery's beat with a heartbeat, a pulse, and our scheduler, which measures the loop's turns."""

import atexit
import sys
from typing import Any

from celery import signals

from processes.celery.celery_app import celery_service
from processes.hosted_process import HostedProcess
from processes.signs_of_life import Heartbeat

# Beat sends two ticks every TICK_S; a turn that takes longer than this counts as hanging. A frozen broker blocks
# it for a few times BROKER_TIMEOUT_S. Not tuned otherwise.
HANGS_AFTER_S = 30.0


def main() -> int:
    """Send ticks until a signal comes; returns the exit status."""
    service = celery_service()

    def begin(sender: Any, **_: Any) -> None:
        scheduler = sender.scheduler
        heartbeat = Heartbeat("beat", service.database_url, busy_s=lambda: scheduler.turn_s)
        process = HostedProcess([heartbeat], works=lambda: scheduler.turn_s < HANGS_AFTER_S)
        process.start()
        atexit.register(process.stop)

    signals.beat_init.connect(begin)
    service.app.Beat(quiet=True).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

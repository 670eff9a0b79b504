"""Runs Flower, `python -m processes.celery.flower_app OPTION...`: common logs, and the queues of all workers.

Flower asks workers for their queues when it starts, and again only when somebody opens its page of workers. Our workers
start after Flower, and their queues would be missing from its page of the broker.
"""

import sys

from flower.views import BaseHandler

from celery_config import gpu_queue
from processes import json_logs
from processes.celery.celery_app import celery_service

CONTROL_PLANE = ("planner", "predictor", "chores")  # Celery workers without a GPU (`cli/hosting/process_commands.py`)


def queue_names(handler: BaseHandler) -> list[str]:
    """Returns the fixed queues and the own queue of each worker whose events Flower hears."""
    heard = handler.application.events.state.workers
    names = {hostname.partition("@")[0] for hostname, worker in heard.items() if worker.alive}
    fixed = {queue.name for queue in handler.application.capp.conf.task_queues}
    return sorted(fixed | {gpu_queue(name) for name in names.difference(CONTROL_PLANE)})


def main() -> None:
    """Serve Flower's pages with the options of this command line."""
    service = celery_service()
    json_logs.configure_background(service.settings.log_level)  # before Flower, which makes handlers if there are none
    BaseHandler.get_active_queue_names = queue_names
    service.app.start(["--quiet", "flower", *sys.argv[1:]])


if __name__ == "__main__":
    main()

"""The application for Flower, `celery -A tasks.flower_app flower`: common logs, and the queues of all workers.

Flower asks workers for their queues when it starts, and again only when somebody opens its page of workers. Ours start
after it, and their queues would be missing from its page of the broker.
"""

from flower.views import BaseHandler

from celery_config import gpu_queue
from processes import json_logs
from tasks.app import app, settings

__all__ = ["app"]

CONTROL_PLANE = ("planner", "predictor", "chores")  # Celery workers without a GPU (`cli/hosting/process_commands.py`)


def queue_names(handler: BaseHandler) -> list[str]:
    """Returns the fixed queues and the own queue of each worker whose events Flower hears."""
    heard = handler.application.events.state.workers
    names = {hostname.partition("@")[0] for hostname, worker in heard.items() if worker.alive}
    return sorted(
        {queue.name for queue in app.conf.task_queues} | {gpu_queue(name) for name in names.difference(CONTROL_PLANE)}
    )


json_logs.configure_background(settings.log_level)  # before Flower, which makes its own handlers if there are none
BaseHandler.get_active_queue_names = queue_names

"""What Flower is started with, `celery -A tasks.flower_app flower`: the application, with logs in the common format."""

from processes import json_logs
from tasks.app import app, settings

__all__ = ["app"]

json_logs.configure_background(settings.log_level)  # now: Flower makes handlers of its own where there are none

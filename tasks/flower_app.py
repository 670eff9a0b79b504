"""The application for Flower, `celery -A tasks.flower_app flower`, with logs in the common format."""

from processes import json_logs
from tasks.app import app, settings

__all__ = ["app"]

json_logs.configure_background(settings.log_level)  # before Flower, which makes its own handlers if there are none

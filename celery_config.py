"""Celery's settings: broker, queues, routes, beat schedule.

Postgres is the only source of truth; a message may be lost or delivered twice without harm. Therefore there is no
result backend, no late acknowledgement, no reliance on the visibility timeout, no delayed message in the broker, and
a publish fails soon when the broker does not answer.
"""

import re
import ssl
from typing import Any

from kombu import Exchange, Queue

from processes.broker import BROKER_TIMEOUT_S

# Longest pause between two tries to reach the broker; Celery's own pauses grow to 30 s. A longer pause delays the
# first batches once the broker is back, a shorter one writes more log lines. Not tuned.
RECONNECT_WITHIN_S = 2.0
# How often beat wakes predictor and planner. Work whose announcement or kick was lost waits at most this long. An idle
# service does little else than tick. Not tuned.
TICK_S = 2.5
# How often closed minutes are counted and old rows deleted. The dashboard's history has one row a minute, so any value
# below 60 works.
UPKEEP_EVERY_S = 10.0
# Redis keeps the bindings of a named exchange as data, and a wiped broker would miss them. The default exchange
# delivers by queue name and has no bindings.
EXCHANGE = Exchange("", type="direct")


def gpu_queue(worker: str) -> str:
    """Returns the name of the queue from which one worker alone takes its batches."""
    return f"gpu.{worker}"


def celery_config(redis_url: str | None, tick_s: float, installation: str) -> dict[str, Any]:
    """Returns all of Celery's settings for `app.conf`; beat wakes predictor and planner every `tick_s` seconds.

    Every key in Redis begins with the installation's name, so that two installations can share one Redis database.
    """
    return {
        "broker_url": re.sub("^unix:", "redis+socket:", redis_url or "") or None,  # kombu's name for a Unix socket
        # unlike redis-py, kombu checks certificates only if configured
        "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED} if (redis_url or "").startswith("rediss:") else False,
        "broker_connection_timeout": BROKER_TIMEOUT_S,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,  # a broker that refuses a write (memory, disk, rights) ends no process
        "broker_transport_options": {
            "socket_timeout": BROKER_TIMEOUT_S,
            "socket_connect_timeout": BROKER_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": 5,
            "global_keyprefix": f"magnus-{installation}:",
        },
        "task_publish_retry": False,
        "result_backend": None,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_default_delivery_mode": "transient",
        "task_default_exchange": "",
        "task_create_missing_queues": True,
        "task_queues": [Queue(name, EXCHANGE, routing_key=name) for name in ("plan", "predict", "upkeep")],
        "task_routes": {f"tasks.{name}": {"queue": name} for name in ("plan", "predict", "upkeep")},
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        "worker_enable_prefetch_count_reduction": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "beat_scheduler": "processes.celery.beat_scheduler:TickScheduler",
        "beat_max_loop_interval": tick_s,
        "beat_schedule": {
            "predict": {"task": "tasks.predict", "schedule": tick_s},
            "plan": {"task": "tasks.plan", "schedule": tick_s},
            "upkeep": {"task": "tasks.upkeep", "schedule": UPKEEP_EVERY_S},
        },
        "enable_utc": True,
        "timezone": "UTC",
    }

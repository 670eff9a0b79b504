"""Celery's settings: broker, queues, routes, beat schedule.

A message is a hint that can be lost or come twice; Postgres is the truth. So: no result backend, no acknowledging late,
no visibility timeout to rely on, nothing delayed in the broker, and a publish that gives up soon.
"""

from typing import Any

from kombu import Exchange, Queue

BROKER_TIMEOUT_S = 2.0  # without it, a publish to a frozen broker was still blocked after 40 s
TICKS_KEPT_S = 5.0  # a tick that nobody took for so long is dropped; longer than hosts' clocks may differ
UPKEEP_EVERY_S = 10.0
EXCHANGE = Exchange("", type="direct")  # the anonymous exchange keeps no binding that a wiped broker would miss


def gpu_queue(worker: str) -> str:
    """The queue of one worker."""
    return f"gpu.{worker}"


def celery_config(redis_url: str | None, tick_s: float) -> dict[str, Any]:
    """Everything that Celery must know, as `app.conf` takes it."""
    return {
        "broker_url": redis_url,
        "broker_connection_timeout": BROKER_TIMEOUT_S,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "socket_timeout": BROKER_TIMEOUT_S,
            "socket_connect_timeout": BROKER_TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": 5,
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
        "imports": ("tasks.upkeep",),
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        "worker_enable_prefetch_count_reduction": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "beat_scheduler": "tasks.beat_scheduler:Ticks",
        "beat_max_loop_interval": tick_s,
        "beat_schedule": {
            "predict": {"task": "tasks.predict", "schedule": tick_s, "options": {"expires": TICKS_KEPT_S}},
            "plan": {"task": "tasks.plan", "schedule": tick_s, "options": {"expires": TICKS_KEPT_S}},
            "upkeep": {
                "task": "tasks.upkeep",
                "schedule": UPKEEP_EVERY_S,
                "options": {"expires": UPKEEP_EVERY_S},
            },
        },
        "enable_utc": True,
        "timezone": "UTC",
    }

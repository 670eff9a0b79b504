"""Beat on a real broker: ticks that nobody takes do not pile up."""

import os
import subprocess
import sys

import redis

from tests.integration.database_stage import eventually


def test_one_tick_at_a_time_waits_for_each_kind_of_process(redis_url: str):
    environment = {
        **os.environ,
        "MAGNUS_DATABASE_URL": "postgresql:///nobody_connects",
        "MAGNUS_REDIS_URL": redis_url,
        "MAGNUS_TICK_S": "0.01",
    }
    command = [sys.executable, "-m", "celery", "-A", "tasks.app", "beat"]
    with redis.Redis.from_url(redis_url) as broker, subprocess.Popen(command, env=environment) as beat:
        try:
            eventually(lambda: broker.llen("plan") and broker.llen("predict"), within_s=120)
            for _ in range(5):  # taken ticks are replaced
                broker.delete("plan")
                eventually(lambda: broker.llen("plan"))
                assert broker.llen("plan") == 1
            assert broker.llen("predict") == 1
        finally:
            beat.terminate()

"""Beat on a real broker: ticks that nobody takes do not pile up."""

import os
import subprocess
import sys

import redis

from models.connections.installation import read_installation
from tests.integration.database_stage import Stage, eventually


def test_one_tick_at_a_time_waits_for_each_kind_of_process(stage: Stage, database_url: str, redis_url: str):
    with stage.database.connect() as connection:
        prefix = f"magnus-{read_installation(connection).name}:"
    environment = {
        **os.environ,
        "MAGNUS_DATABASE_URL": database_url,
        "MAGNUS_REDIS_URL": redis_url,
    }
    fast = "import celery_config; celery_config.TICK_S = 0.01; from runpy import run_module; "
    run = "run_module('processes.celery.beat_process', run_name='__main__')"
    command = [sys.executable, "-c", fast + run]
    with redis.Redis.from_url(redis_url) as broker, subprocess.Popen(command, env=environment) as beat:
        try:
            eventually(lambda: broker.llen(prefix + "plan") and broker.llen(prefix + "predict"), within_s=120)
            for _ in range(5):  # taken ticks are replaced
                broker.delete(prefix + "plan")
                eventually(lambda: broker.llen(prefix + "plan"))
                assert broker.llen(prefix + "plan") == 1
            assert broker.llen(prefix + "predict") == 1
        finally:
            beat.terminate()

"""Whatever lies in the broker's queues: it ends no process, and what comes behind it is taken."""

import base64
import json
import signal
from pathlib import Path
from typing import Any

import redis

from models.connections.installation import read_installation
from tests.integration.database_stage import Stage, eventually
from tests.integration.processes.test_run_command import project, run

__all__ = ["project"]  # a fixture


def message(**changed: Any) -> bytes:
    """A message as Celery sends it, but for some fields."""
    body = base64.b64encode(json.dumps([[], {}, {}]).encode()).decode()
    tag = {"delivery_tag": f"t{changed!r}", "delivery_mode": 1}
    properties = {**tag, "delivery_info": {"exchange": "", "routing_key": "plan"}, "body_encoding": "base64"}
    headers = {"lang": "py", "task": "tasks.plan", "id": "1", "argsrepr": "()", "kwargsrepr": "{}"}
    whole = {"body": body, "content-encoding": "utf-8", "content-type": "application/json"}
    return json.dumps({**whole, "headers": headers, "properties": properties, **changed}).encode()


GARBAGE = [
    b"",
    b"\xff\xfe\x00",
    b"nonsense",
    b"[" * 100_000,
    *(b"[]", b"5", b"null", b"{}", b'{"properties": 5}', b'{"properties": {"delivery_tag": []}}'),
    b'{"__type__": "datetime", "__value__": 5}',
    b'{"__type__": "uuid", "__value__": {}}',
    message(body="!"),
    message(body=5),
    message(body=base64.b64encode(b"\xff").decode()),
    message(body=base64.b64encode(b"{}").decode()),
    message(headers=None),
    message(headers={"task": 5}),
    message(headers={"task": "tasks.plan", "id": "1", "eta": "soon", "expires": [], "timelimit": 7, "retries": "x"}),
    message(headers={"task": "os.system", "id": "1"}),
    message(**{"content-type": "application/x-python-serialize"}),
    message(properties={"delivery_tag": "t", "delivery_info": 5}),
    message(properties={"delivery_tag": {"a": 1}, "delivery_info": {"exchange": "", "routing_key": "plan"}}),
]


def test_no_message_ends_a_process(project: Path, stage: Stage, redis_url: str) -> None:
    with stage.database.connect() as connection:
        prefix = f"magnus-{read_installation(connection).name}:"
    queue = prefix + "plan"
    with redis.Redis.from_url(redis_url) as broker, run("planner", project) as running:
        try:

            def taken() -> bool:
                assert running.poll() is None, (project / "log").read_text()
                return not broker.exists(queue)

            eventually(lambda: stage.sql("select 1 from process_heartbeats"), within_s=60.0)
            for garbage in GARBAGE:
                broker.lpush(queue, garbage)
                broker.publish(prefix + "kicks", garbage)
                broker.publish(prefix + "/0.celery.pidbox", garbage)
            broker.lpush(queue, message())
            eventually(taken, within_s=60.0)
            broker.set(queue, "no list")
            eventually(taken, within_s=60.0)
            broker.lpush(queue, message())
            eventually(taken, within_s=60.0)
            eventually(lambda: not broker.hlen(prefix + "unacked"))  # what is dropped takes no place of another one
        finally:
            running.send_signal(signal.SIGTERM)
    assert running.returncode == 0, (project / "log").read_text()

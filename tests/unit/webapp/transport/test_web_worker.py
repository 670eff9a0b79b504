"""How long a client may take to send a body: the more has come, the longer. And what the module may import."""

import io
import socket
import subprocess
import sys
from types import SimpleNamespace

import gevent
import gevent.event
from werkzeug.test import Client
from werkzeug.wrappers import Response

from webapp.transport.web_worker import SLOWEST_BYTES_S, OpenConnections, TimedBody


def test_what_has_come_gives_the_rest_of_a_body_time() -> None:
    body = TimedBody(SimpleNamespace(body=io.BytesIO(bytes(20 * SLOWEST_BYTES_S))), within_s=5.0)
    for read in range(1, 11):
        assert len(body.read(SLOWEST_BYTES_S)) == SLOWEST_BYTES_S
        assert body._left_s > read
    assert body._left_s <= 15.0


def test_a_process_whose_connections_are_all_in_use_still_answers_signs_of_life() -> None:
    connections, ended = OpenConnections(most=1), gevent.event.Event()
    app = Client(connections.unless_full(Response("served")))

    def use() -> list[int]:
        with socket.socket() as client, connections.opened(client):
            found = [app.get(path).status_code for path in ("/v1/models", "/healthz")]
            ended.wait()
        return found

    in_use = [gevent.spawn(use) for _ in range(2)]
    gevent.idle()
    ended.set()
    assert [one.get() for one in in_use] == [[200, 200], [503, 200]]
    assert gevent.spawn(use).get() == [200, 200]


def test_nothing_that_gevent_must_patch_first_is_imported() -> None:
    look = "import sys, webapp.transport.web_worker; print({'psycopg', 'sqlalchemy', 'redis'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.strip() == "set()"

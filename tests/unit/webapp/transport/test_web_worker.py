"""How long a client may take to send a body: the more has come, the longer. And what the module may import."""

import io
import subprocess
import sys

from webapp.transport.web_worker import SLOWEST_BYTES_S, TimedBody


def test_what_has_come_gives_the_rest_of_a_body_time() -> None:
    body = TimedBody(io.BytesIO(bytes(20 * SLOWEST_BYTES_S)), within_s=5.0)
    for read in range(1, 11):
        assert len(body.read(SLOWEST_BYTES_S)) == SLOWEST_BYTES_S
        assert body._left_s > read
    assert body._left_s <= 15.0


def test_nothing_that_gevent_must_patch_first_is_imported() -> None:
    look = "import sys, webapp.transport.web_worker; print({'psycopg', 'sqlalchemy', 'redis'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.strip() == "set()"

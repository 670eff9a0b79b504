"""The gunicorn worker of the web process: one green thread for each connection, with bounds on slow clients.

Idle connections, half-sent requests and calls that wait cost some kilobytes each, no thread. A request's headers must
arrive within gunicorn's --keep-alive, its body within BODY_WITHIN_S or at SLOWEST_BYTES_S, and a client must read on
within STALLED_S.

gunicorn imports this module before gevent patches the process. psycopg waits without blocking the other green threads
only if it is imported after that, so nothing here may import it.
"""

import logging
import resource
from collections.abc import Callable, Iterable
from socket import MSG_PEEK, socket
from time import monotonic
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import gevent
import gevent.socket
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.workers.base_async import AsyncWorker
from gunicorn.workers.ggevent import GeventWorker
from werkzeug.exceptions import BadRequest, RequestTimeout

from processes import json_logs
from processes.garbage_collection import limit_garbage_collection
from webapp.waiting.patience import CONNECTION

BODY_WITHIN_S = 60.0  # enough for the default MAGNUS_MAX_BODY_BYTES, 8 MiB, at 1.2 Mbit/s
SLOWEST_BYTES_S = 150_000  # larger bodies, uploaded files, must be at least this fast
OPEN_FILES = 8192  # twice the --worker-connections; most systems let a process begin with 1,024
STALLED_S = 90.0  # longer than the --keep-alive of 75 s, so that idle connections end without an error. Not tuned


class WebWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's gevent worker with bounds on bodies and answers; its waiting calls end when it shuts down."""

    wsgi: Any

    def init_process(self) -> None:
        """Raises the process's limit of open files above the number of its connections."""
        files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files < OPEN_FILES:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most), most)
            )
        super().init_process()

    def load_wsgi(self) -> None:
        """Loads the app."""
        super().load_wsgi()
        json_logs.configure_uncaught()
        limit_garbage_collection()
        self.app_of_worker = self.wsgi
        self.wsgi = with_connection(bodies_in_time(self.wsgi, BODY_WITHIN_S))

    def handle(self, listener: Any, client: socket, addr: Any) -> None:
        """Serves one connection; every single read and write must end within STALLED_S."""
        client.settimeout(STALLED_S)
        AsyncWorker.handle(self, listener, client, addr)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stops accepting connections, ends waiting calls, and exits once the open calls are answered."""
        super().handle_exit(sig, frame)
        gevent.spawn(self.app_of_worker.extensions["magnus"].waiting_calls.stop)


class TimedBody:
    """A request's body whose reading may take `within_s` seconds, and one more for each SLOWEST_BYTES_S received.

    Raises RequestTimeout, and BadRequest for malformed chunks; then the connection is closed.
    """

    def __init__(self, body: Any, within_s: float) -> None:
        self._body, self._left_s = body, within_s

    def read(self, size: int = -1) -> bytes:
        """Reads like a file; only the time within reads counts."""
        began = monotonic()
        try:
            with gevent.Timeout(self._left_s, RequestTimeout()):
                data: bytes = self._body.read(size)
        except (ParseException, NoMoreData) as error:  # gunicorn raises them for chunks alone
            self._body.reader.req.force_close()
            raise BadRequest("The body's chunks are malformed, or end too early.") from error
        took_s = monotonic() - began - len(data) / SLOWEST_BYTES_S
        self._left_s = max(0.001, self._left_s - took_s)  # gevent takes 0 for "yield once"
        return data


def bodies_in_time(app: WSGIApplication, within_s: float) -> WSGIApplication:
    """Returns the app with each body replaced by a TimedBody."""

    def bounded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["wsgi.input"] = TimedBody(environ["wsgi.input"], within_s)
        return app(environ, start_response)

    return bounded


class WatchedConnection:
    """Watches a client's connection for its close, while the client's call waits and reads nothing from it."""

    def __init__(self, client: socket) -> None:
        self._client = client

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back once the client has closed the connection; returns a function that ends the watch."""
        watch = gevent.spawn(self._watch, callback)
        return lambda: watch.kill(block=False)

    def _watch(self, callback: Callable[[], None]) -> None:
        gevent.socket.wait_read(self._client.fileno())
        try:
            if self._client.recv(1, MSG_PEEK):
                return  # the client sent its next request ahead, behind which a close is not seen
        except OSError:  # the connection was reset
            pass
        callback()


def with_connection(app: WSGIApplication) -> WSGIApplication:
    """Returns the app with the connection of each request in its environment."""

    def connected(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ[CONNECTION] = WatchedConnection(environ["gunicorn.socket"])
        return app(environ, start_response)

    return connected


class WebLogger(Logger):  # type: ignore[misc]
    """Logs gunicorn's own lines as JSON, without data from clients such as request lines or bad headers."""

    def setup(self, cfg: Config) -> None:
        """Writes errors only: a warning quotes the header or the request line that gunicorn refused."""
        super().setup(cfg)
        self.error_log.handlers = [json_logs.library_handler()]
        self.error_log.setLevel(logging.ERROR)

    def exception(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Writes a traceback, without the message's arguments."""
        super().exception(msg.partition("%")[0].strip(), **kwargs)

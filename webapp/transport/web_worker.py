"""The gunicorn worker of the web process: one green thread for each connection, with bounds on slow clients.

Idle connections, half-sent requests and calls that wait cost some kilobytes each, no thread. A request's headers must
arrive within gunicorn's --keep-alive, its body within BODY_WITHIN_S or at SLOWEST_BYTES_S, and a client must read on
within STALLED_S. If there are too many connections, the one that has been idle for longest is closed. A connection with
a refused body is closed if the body does not end soon.

gunicorn imports this module before gevent patches the process. psycopg waits without blocking the other green threads
only if it is imported after that, so nothing here may import it.
"""

import logging
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socket import MSG_PEEK, SHUT_RDWR, socket
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
from werkzeug.exceptions import BadRequest, HTTPException, RequestTimeout

from processes import json_logs
from processes.garbage_collection import limit_garbage_collection
from webapp.transport.repeated_headers import add_repeated
from webapp.waiting.patience import CONNECTION

BODY_WITHIN_S = 60.0  # enough for the default MAGNUS_MAX_BODY_BYTES, 8 MiB, at 1.2 Mbit/s
SLOWEST_BYTES_S = 150_000  # larger bodies, uploaded files, must be at least this fast
OPEN_FILES = 8192  # twice the --worker-connections; most systems let a process begin with 1,024
OTHER_FILES = 512  # of OPEN_FILES, for libraries, database and broker; a process has 60 open. Not tuned
SPARE_CONNECTIONS = 100  # of the --worker-connections, for signs of life while all others are in use. Not tuned
SPARE_PATHS = ("/healthz", "/health")
# Most bytes and seconds for which a refused body is read and dropped behind its answer, because some clients send the
# whole body before they read the answer. The bytes are twice the default of MAGNUS_MAX_BODY_BYTES. Not tuned.
SKIPPED_BYTES, SKIPPED_WITHIN_S = 2**24, 2.0
PIECE = 2**16  # bytes of a read after which other green threads have their turn: less than a millisecond's work
FULL = (
    b'{"type": "error", "error": {"message": "This process has no free connection for further calls. '
    b'Try again later.", "type": "server_error", "param": null, "code": "too_many_connections"}}'
)
STALLED_S = 90.0  # longer than the --keep-alive of 75 s, so that idle connections end without an error. Not tuned


class WebWorker(GeventWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's gevent worker with bounds on bodies and answers; its waiting calls end when it shuts down."""

    wsgi: Any
    worker_connections: int

    def init_process(self) -> None:
        """Raises the process's limit of open files above the number of its connections."""
        files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files < OPEN_FILES:
            files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
        open_at_once = max(SPARE_CONNECTIONS, min(self.worker_connections, files - OTHER_FILES) - SPARE_CONNECTIONS)
        self.connections, self.worker_connections = OpenConnections(open_at_once), open_at_once + SPARE_CONNECTIONS
        super().init_process()

    def load_wsgi(self) -> None:
        """Loads the app."""
        super().load_wsgi()
        json_logs.configure_uncaught()
        limit_garbage_collection()
        self.app_of_worker = self.wsgi
        self.wsgi = with_connection(self.connections.unless_full(self.wsgi))

    def handle(self, listener: Any, client: socket, addr: Any) -> None:
        """Serves one connection; every single read and write must end within STALLED_S."""
        client.settimeout(STALLED_S)
        with self.connections.opened(client):
            AsyncWorker.handle(self, listener, client, addr)

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Bounds the wait for a connection's next request, during which the connection is idle."""
        with self.connections.idle(), gevent.Timeout(self.cfg.keepalive, False):
            yield

    def handle_request(self, listener_name: Any, req: Any, sock: socket, addr: Any) -> None:
        """Answers one request, with its repeated headers marked; closes the connection if its body does not end."""
        add_repeated(req.headers)
        body = req.body = TimedBody(req, BODY_WITHIN_S)
        try:
            super().handle_request(listener_name, req, sock, addr)
        finally:
            if not body.skip():
                req.force_close()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stops accepting connections, ends waiting calls, and exits once the open calls are answered."""
        super().handle_exit(sig, frame)
        gevent.spawn(self.app_of_worker.extensions["magnus"].waiting_calls.stop)


class OpenConnections:
    """The open connections of a process; beyond `most`, the one that has waited longest for a request is closed.

    If none waits for a request, calls on further connections are refused, unless they ask for a sign of life.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._clients: dict[Any, socket] = {}  # by the green thread that serves the connection
        self._idle: dict[Any, None] = {}  # threads whose connections wait for a request, the longest first
        self._spare = set[Any]()  # threads of the connections that came while all others were in use

    @contextmanager
    def opened(self, client: socket) -> Iterator[None]:
        """Counts this green thread's connection within the `with` block."""
        own = gevent.getcurrent()
        self._clients[own] = client
        if len(self._clients) > self._most:
            self._make_place(own)
        try:
            yield
        finally:
            del self._clients[own]
            self._spare.discard(own)

    def _make_place(self, own: Any) -> None:
        if not self._idle:
            self._spare.add(own)
            return
        longest = next(iter(self._idle))
        del self._idle[longest]
        with suppress(OSError):  # the client has closed it
            self._clients[longest].shutdown(SHUT_RDWR)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """This green thread's connection waits for a request within the `with` block."""
        own = gevent.getcurrent()
        self._idle[own] = None
        try:
            yield
        finally:
            self._idle.pop(own, None)

    def unless_full(self, app: WSGIApplication) -> WSGIApplication:
        """Returns the app, which refuses calls on spare connections unless they ask for a sign of life."""

        def bounded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            full = len(self._clients) > self._most and gevent.getcurrent() in self._spare
            if not full or environ["PATH_INFO"] in SPARE_PATHS:
                return app(environ, start_response)
            headers = [("Content-Type", "application/json"), ("Retry-After", "1")]
            start_response("503 SERVICE UNAVAILABLE", [*headers, ("Content-Length", str(len(FULL)))])
            return [FULL]

        return bounded


class TimedBody:
    """A request's body whose reading may take `within_s` seconds, and one more for each SLOWEST_BYTES_S received.

    Raises RequestTimeout, and BadRequest for malformed chunks; then the connection is closed.
    """

    def __init__(self, request: Any, within_s: float) -> None:
        """Takes gunicorn's request."""
        self._request, self._body, self._left_s = request, request.body, within_s

    def read(self, size: int = -1) -> bytes:
        """Reads like a file; only the time within reads counts."""
        began = monotonic()
        try:
            with gevent.Timeout(self._left_s, RequestTimeout()):
                data: bytes = self._body.read(size)
        except (ParseException, NoMoreData) as error:  # gunicorn raises them for chunks alone
            self._request.force_close()
            raise BadRequest("The body's chunks are malformed, or end too early.") from error
        took_s = monotonic() - began - len(data) / SLOWEST_BYTES_S
        self._left_s = max(0.001, self._left_s - took_s)  # gevent takes 0 for "yield once"
        if len(data) >= PIECE:
            gevent.sleep(0)  # data that has come already is read without a wait
        return data

    def begin_answer(self) -> None:
        """Lets the answer say that the connection is closed if too much of the body is unread."""
        if getattr(self._body.reader, "length", 0) > SKIPPED_BYTES:  # a chunked body's is not known
            self._request.force_close()

    def skip(self) -> bool:
        """Reads and drops at most SKIPPED_BYTES within SKIPPED_WITHIN_S; returns whether the body ended."""
        skipped = 0
        with suppress(OSError, HTTPException), gevent.Timeout(SKIPPED_WITHIN_S, False):
            while skipped <= SKIPPED_BYTES:
                piece = self.read(16 * PIECE)
                if not piece:
                    return True
                skipped += len(piece)
        return False


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
    """Returns the app with each request's connection in its environment; a long unread body makes answers close it."""

    def connected(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ[CONNECTION] = WatchedConnection(environ["gunicorn.socket"])
        body = environ["wsgi.input"]

        def start(*answer: Any) -> Callable[[bytes], object]:
            body.begin_answer()
            return start_response(*answer)

        return app(environ, start)

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

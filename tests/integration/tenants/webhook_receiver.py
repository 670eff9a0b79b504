"""An HTTP server that receives webhooks in tests: it verifies nothing, remembers all, and answers as it is told."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Received:
    """One attempt to deliver an event."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What came, and how to answer: `answer` gets the handler and what it received, else the status is `status`."""

    port: int = 0
    status: int = 200
    answer: Callable[[BaseHTTPRequestHandler, Received], None] | None = None
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def event_ids(self) -> list[str]:
        """The ids of the events in order of arrival."""
        return [one.headers["webhook-id"] for one in list(self.received)]


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """A receiver on a free port of loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got = Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            receiver.received.append(got)
            if receiver.answer is not None:
                receiver.answer(self, got)
                return
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            return  # a client that left in the middle

    server = Server(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield receiver
    server.shutdown()
    server.server_close()
    thread.join()

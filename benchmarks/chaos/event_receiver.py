"""An HTTP server that receives webhooks and remembers the ids of the events; every so many attempts it refuses one."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSES_EVERY = 20  # any number does that makes some events come again and leaves most of them alone


@dataclass
class EventReceiver:
    """`taken` counts the attempts that were answered with success, by event."""

    url: str = ""
    attempts: int = 0
    taken: Counter[str] = field(default_factory=Counter)

    def lost(self, events: set[str]) -> set[str]:
        """Those of these events that never arrived."""
        return events - set(self.taken)


@contextmanager
def event_receiver() -> Iterator[EventReceiver]:
    """A receiver on a free port of loopback."""
    receiver, lock = EventReceiver(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Take or refuse an event."""
            self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                receiver.attempts += 1
                refused = receiver.attempts % REFUSES_EVERY == 0
                if not refused:
                    receiver.taken[self.headers["webhook-id"]] += 1
            self.send_response(500 if refused else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """A killed sender leaves in the middle."""

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/events"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Helpers outside a service under test: a receiver of webhooks, and a TCP proxy whose connections can be cut."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REFUSES_EVERY = 20  # one attempt in this many is refused, so that some events come again


@dataclass
class EventReceiver:
    """The received events; `taken` counts the successful attempts of each event."""

    url: str = ""
    attempts: int = 0
    taken: Counter[str] = field(default_factory=Counter)

    def lost(self, events: set[str]) -> set[str]:
        """The events of this set that never arrived."""
        return events - set(self.taken)


@contextmanager
def event_receiver() -> Iterator[EventReceiver]:
    """Run a receiver on a free port of loopback."""
    receiver, lock = EventReceiver(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Accept or refuse an event."""
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
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """Ignore senders that were killed during a request."""

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


class CuttableProxy:
    """Forwards a port of loopback to an address; `cut_one` resets one of its connections."""

    def __init__(self, host: str, port: int | None = None, path: str | None = None) -> None:
        """Forward to `host` and `port`, or to the Unix socket `path`."""
        self._target = (host, port, path)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._random = random.Random(7)
        self.cuts = 0
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port, path = self._target
        try:
            inner = await (asyncio.open_unix_connection(path) if path else asyncio.open_connection(host, port))
        except OSError:
            writer.transport.abort()
            return
        self._writers[id(writer)] = writer
        try:
            await asyncio.gather(_pump(reader, inner[1]), _pump(inner[0], writer))
        finally:
            self._writers.pop(id(writer), None)
            writer.close()
            inner[1].close()

    def cut_one(self) -> None:
        """Reset a connection chosen at random, if there is one."""

        def cut() -> None:
            if self._writers:
                self.cuts += 1
                self._random.choice(list(self._writers.values())).transport.abort()

        self._loop.call_soon_threadsafe(cut)

    async def _end_all(self) -> None:
        while self._writers:
            for writer in self._writers.values():
                writer.transport.abort()
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)  # transports close in a later iteration of the event loop

    async def _listen(self, listening: "Future[int]") -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        listening.set_result(server.sockets[0].getsockname()[1])
        await self._ending.wait()
        server.close()
        await self._end_all()

    @contextmanager
    def running(self) -> Iterator["CuttableProxy"]:
        """Serve from a thread, in an event loop of its own, until the context ends."""
        listening: Future[int] = Future()
        thread = threading.Thread(target=lambda: asyncio.run(self._listen(listening)), daemon=True)
        thread.start()
        self.port = listening.result(timeout=10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._ending.set)
            thread.join()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()

"""A bulk job and webhooks beside other requests while processes are killed: each line answered once, no event lost."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.harness import Row, until
from benchmarks.inputs.request_sources import start_bulk_job, write_bulk_file
from cli.api_client import Client
from cli.bulk_run import ENDED
from inference.toy.toy_applications import toy_requests
from tests.chaos.promised_service import PromisedService

ENDED_WITHIN_S = 300.0  # a job that has not ended by then counts as lost
REFUSES_EVERY = 20  # one attempt in this many is refused, so that some events come again
MADE = "select count(*) from bulk_lines where request_id is not null and job_id = :id"


class JobUnderKills:
    """A bulk job that is read, served and counted during the kills."""

    def __init__(self, client: Client, directory: Path, lines: int) -> None:
        """Upload the lines and create the job."""
        self._client, self._lines, path = client, lines, directory / "lines.jsonl"
        write_bulk_file(path, "bundled", toy_requests(lines, seed=31, median_words=8.0, max_words=30))
        self._id = start_bulk_job(client, path)["id"]

    def rows(self, service: PromisedService) -> Iterator[Row]:
        """Wait for the job's end, and judge its files."""
        until(lambda: self._client.batch(self._id)["status"] in ENDED, ENDED_WITHIN_S, 1.0)
        job = self._client.batch(self._id)
        answered, refused = (self._named_lines(job[kind]) for kind in ("output_file_id", "error_file_id"))
        lost, twice = self._lines - len(answered), sum(count > 1 for count in answered.values())
        made = service.value(MADE, id=self._id)
        name, shown = f"a bulk job of {self._lines} lines meanwhile", f"{lost}, {refused.total()} in the error file"
        yield Row(f"{name}: lines without an answer", "0", shown, not lost and not refused)
        yield Row(f"{name}: lines twice in the output file", "0", f"{twice}", not twice)
        yield Row(f"{name}: requests made of the lines", f"{self._lines}", f"{made}", made == self._lines)
        yield Row(f"{name}: the job", "completed", job["status"], job["status"] == "completed")

    def _named_lines(self, file_id: str | None) -> Counter[str]:
        """Count how often each custom_id is in a file of results."""
        content = b"".join(self._client.content(file_id)) if file_id else b""
        return Counter(json.loads(line)["custom_id"] for line in content.splitlines())


@dataclass
class EventReceiver:
    """The received events; `taken` counts the successful attempts of each event."""

    url: str = ""
    attempts: int = 0
    taken: Counter[str] = field(default_factory=Counter)


@contextmanager
def event_receiver() -> Iterator[EventReceiver]:
    """Run a receiver of webhooks on a free port of loopback."""
    receiver, lock = EventReceiver(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Accept or refuse an event."""
            self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                receiver.attempts += 1
                refused = receiver.attempts % REFUSES_EVERY == 0
                receiver.taken.update([] if refused else [self.headers["webhook-id"]])
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

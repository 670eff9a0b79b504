"""A web process as it runs in production: gunicorn with our worker, on a port of its own."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx
from pydantic import SecretStr

from cli.hosting.process_commands import web
from settings import Settings


@dataclass(frozen=True)
class WebProcess:
    """Where it listens, its process, and its log."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """The address of the API."""
        return f"http://127.0.0.1:{self.port}"

    def connection(self, sent: bytes = b"") -> socket.socket:
        """A connection of a client that sends this and then nothing."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        client.sendall(sent)
        return client


@contextmanager
def running_web(settings: Settings, directory: Path) -> Iterator[WebProcess]:
    """Start a web process with these settings, wait until it answers, kill it at the end if it still runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = settings.model_dump(include=settings.model_fields_set, exclude_none=True)
    environment = {
        f"MAGNUS_{name.upper()}": value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in given.items()
    }
    log = directory / "web.log"
    command = web("127.0.0.1", port, lambda: True).command
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output) as process,
    ):
        try:
            pause = Event()
            while True:
                assert process.poll() is None, log.read_text()
                try:
                    httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60)
                    break
                except httpx.ConnectError:
                    pause.wait(0.05)
            yield WebProcess(port, process, log)
        finally:
            process.kill()

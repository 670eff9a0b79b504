"""Clients without a key: what they send or hold open keeps nobody else from an answer, and does not end the process."""

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from settings import Settings
from tests.integration.web_process import WebProcess, running_web

PATIENCE_S = 5.0  # quiet machine: 10 ms; gunicorn ends a process after 20 s


@pytest.fixture
def web(web_settings: Settings, tmp_path: Path) -> Iterator[WebProcess]:
    """A web process."""
    with running_web(web_settings, tmp_path) as web:
        yield web


@contextmanager
def neighbour(web: WebProcess, every_s: float = 0.2) -> Iterator[list[float]]:
    """Asks for a sign of life again and again, each time on a new connection; the seconds that each answer took."""
    took_s, ended = list[float](), threading.Event()

    def ask() -> None:
        while not ended.wait(every_s):
            began = time.monotonic()
            with suppress(httpx.TransportError):
                httpx.get(f"{web.url}/healthz", timeout=60).raise_for_status()
            took_s.append(time.monotonic() - began)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield took_s
    finally:
        ended.set()
        asking.join()


def test_a_body_that_is_refused_unread_is_not_read_to_its_end(web: WebProcess) -> None:
    size, piece = 600 * 2**20, bytes(2**20)
    head = f"POST /v1/responses HTTP/1.1\r\nHost: here\r\nContent-Length: {size}\r\n\r\n"
    with neighbour(web) as took_s:
        while len(took_s) < 5:
            sent = 0
            with web.connection(head.encode()) as client, suppress(ConnectionError):
                while sent < size:
                    client.sendall(piece)
                    sent += len(piece)
            assert sent < 64 * 2**20
    assert max(took_s) < PATIENCE_S


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_a_refused_body_to_its_end_reads_the_answer(web: WebProcess, chunked: bool) -> None:
    body = bytes(12 * 2**20)
    with httpx.Client(base_url=web.url, timeout=60) as client:
        for _ in range(2):
            content = iter([body]) if chunked else body
            assert client.post("/v1/responses", content=content).status_code == 401


def test_a_connection_stays_open_behind_a_refused_body_that_was_short(web: WebProcess) -> None:
    call = b"POST /v1/responses HTTP/1.1\r\nHost: here\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000)
    with web.connection(call + call) as client, client.makefile("rb") as answers:
        for _ in range(2):
            assert next(answers).startswith(b"HTTP/1.1 401 ")
            head = dict(line.strip().lower().split(b": ") for line in iter(lambda: next(answers), b"\r\n"))
            assert head[b"connection"] == b"keep-alive"
            answers.read(int(head[b"content-length"]))


def test_thousands_of_idle_connections_neither_end_the_process_nor_keep_anybody_out(web: WebProcess) -> None:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, min(most, 8192)), most))
    with ExitStack() as held:
        idle = [held.enter_context(web.connection(b"" if number % 2 else b"GET /he")) for number in range(4100)]
        with neighbour(web) as took_s:
            while len(took_s) < 5:
                threading.Event().wait(0.1)
        assert max(took_s) < PATIENCE_S
        assert idle[0].recv(1) == b""
        idle[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 200 " in idle[-1].recv(100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))

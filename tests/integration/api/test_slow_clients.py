"""Clients that are idle, slow or stuck cost the web process no thread: whoever else comes is served."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from settings import Settings
from tests.integration.api_service import Api
from tests.integration.web_process import WebProcess, running_web

BODY = {"model": "words", "input": "eins zwei", "instructions": "Translate.", "background": True}


@pytest.fixture
def web(web_settings: Settings, api: Api, tmp_path: Path) -> Iterator[WebProcess]:
    """A web process on the database of the fixture `api`, whose calls wait for a minute."""
    with running_web(web_settings.model_copy(update={"wait_s": 60.0}), tmp_path) as web:
        yield web


def client_of(web: WebProcess, api: Api) -> httpx.Client:
    return httpx.Client(base_url=web.url, headers={"Authorization": f"Bearer {api.key}"}, timeout=60)


def test_hundreds_of_idle_and_half_sent_requests_keep_nobody_out(web: WebProcess, api: Api) -> None:
    half_a_header = b"POST /v1/responses HTTP/1.1\r\nHost: here\r\nX-Half"
    half_a_body = (
        f"POST /v1/responses HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {api.key}\r\n"
        'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"model": '
    ).encode()
    with ExitStack() as held, client_of(web, api) as client:
        for sent in [b""] * 300 + [half_a_header] * 64 + [half_a_body] * 64:
            held.enter_context(web.connection(sent))
        answers = [client.post("/v1/responses", json=BODY).status_code for _ in range(20)]
        assert answers == [200] * 20
        assert client.get("/healthz").status_code == 200
    assert api.sql("select count(*) from requests")[0][0] == 20


def test_malformed_chunks_are_a_clients_error_and_what_follows_them_is_no_request(web: WebProcess, api: Api) -> None:
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {api.key}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    behind = "GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
    for chunks in (
        "zz\r\n{}\r\n",
        "-1\r\n",
        "2\r\n{}xx0\r\n\r\n",
        "2;=\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}\r\n0\r\nbad\r\n\r\n",
    ):
        with web.connection((head + chunks + behind).encode()) as client:
            answers = b"".join(iter(partial(client.recv, 65536), b""))
        assert answers.startswith(b"HTTP/1.1 400 "), (chunks, answers)
        assert answers.count(b"HTTP/1.1 ") == 1, (chunks, answers)
    with web.connection((head + "10\r\n{").encode()) as client:
        client.shutdown(socket.SHUT_WR)
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_who_waits_when_the_process_stops_is_answered(web: WebProcess, api: Api) -> None:
    answers: list[httpx.Response] = []

    def wait() -> None:
        with client_of(web, api) as client:
            answers.append(client.post("/v1/responses", json=BODY | {"background": False}))

    calls = [threading.Thread(target=wait) for _ in range(8)]
    for call in calls:
        call.start()
    while api.sql("select count(*) from requests")[0][0] < len(calls):
        assert all(call.is_alive() for call in calls)
    web.process.send_signal(signal.SIGTERM)
    for call in calls:
        call.join()
    assert web.process.wait(60) == 0
    assert [answer.json()["status"] for answer in answers] == ["queued"] * len(calls)

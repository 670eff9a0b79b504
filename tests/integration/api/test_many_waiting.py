"""Calls that wait, streams, and clients that leave them, in a web process as it runs in production."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from openai import APITimeoutError, OpenAI

from models import notifications
from tests.integration.api_service import Api
from tests.integration.conftest import running_api, small_service
from tests.integration.database_stage import eventually
from tests.integration.web_process import WebProcess, running_web

WAITING, STREAMS = 200, 100  # `python -m benchmarks.api.waiting_chats` has five times as many
BODY = {"model": "words", "input": "eins zwei"}


@pytest.fixture(scope="module")
def service(
    module_database_url: str, word_model: Path, redis_server_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WebProcess, Api]]:
    """A web process whose calls wait for a minute, and the API on its database."""
    settings = small_service(module_database_url, word_model)
    served = settings.model_copy(update={"wait_s": 60.0, "redis_url": redis_server_url})
    with contextmanager(running_api)(settings) as api, running_web(served, tmp_path_factory.mktemp("web")) as web:
        yield web, api


@pytest.fixture
def api(service: tuple[WebProcess, Api]) -> Api:
    """The API without requests of earlier tests."""
    service[1].sql("delete from requests")
    return service[1]


@pytest.fixture
def web(service: tuple[WebProcess, Api]) -> WebProcess:
    """The web process on the database of the fixture `api`."""
    return service[0]


def posted(web: WebProcess, api: Api, *headers: str, **fields: object) -> socket.socket:
    """A connection on which a request was sent."""
    body = json.dumps(BODY | fields).encode()
    lines = [
        "POST /v1/responses HTTP/1.1",
        "Host: here",
        f"Authorization: Bearer {api.key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return web.connection("\r\n".join([*lines, "", ""]).encode() + body)


def stored(api: Api, count: int) -> list[str]:
    """The states of the requests in order of arrival, once there are `count` requests."""
    eventually(lambda: api.sql("select count(*) from requests")[0][0] == count)
    return [row.status for row in api.sql("select status from requests order by arrived_at")]


def test_hundreds_of_waiting_calls_and_streams_keep_nobody_out_and_are_all_answered(web: WebProcess, api: Api):
    with ExitStack() as held:
        waiting = [held.enter_context(posted(web, api)) for _ in range(WAITING)]
        streams = [held.enter_context(posted(web, api, stream=True)) for _ in range(STREAMS)]
        stored(api, WAITING + STREAMS)
        with httpx.Client(base_url=web.url, headers={"Authorization": f"Bearer {api.key}"}, timeout=60) as client:
            answers = [client.post("/v1/responses", json=BODY | {"background": True}) for _ in range(20)]
            assert [answer.status_code for answer in answers] == [200] * 20
        ended = api.sql(
            """update requests set status = 'completed', output_text = 'one two', output_tokens = 2,
            finished_at = clock_timestamp() where not (body->>'background')::bool returning id"""
        )
        with api.engine.begin() as connection:
            notifications.notify_ended(connection, [row.id for row in ended])
        for call in waiting:
            answer = received(call, b'"truncation"')
            assert answer.startswith(b"HTTP/1.1 200")
            assert b'"status":"completed"' in answer
        for stream in streams:
            events = received(stream, b"event: response.completed")
            assert events.startswith(b"HTTP/1.1 200")
            assert events.count(b"event: response.output_text.delta") == 1


def received(client: socket.socket, until: bytes) -> bytes:
    """Everything received on this connection up to these bytes."""
    data = b""
    while until not in data:
        part = client.recv(65536)
        assert part, data
        data += part
    return data


def test_the_headers_of_a_stream_come_before_its_first_token(web: WebProcess, api: Api):
    with posted(web, api, "Prefer: wait=60", stream=True) as stream:
        headers, _, begun = received(stream, b"\r\n\r\n").partition(b"\r\n\r\n")
        assert headers.startswith(b"HTTP/1.1 200")
        assert b"text/event-stream" in headers
        assert b"delta" not in begun


def test_a_client_that_leaves_cancels_what_nobody_else_will_read(web: WebProcess, api: Api):
    with (
        posted(web, api),
        posted(web, api, stream=True),
        posted(web, api, "Idempotency-Key: a"),
        posted(web, api, "Idempotency-Key: b", stream=True),
        posted(web, api, stream=True, background=True),
    ):
        assert stored(api, 5) == ["queued"] * 5
        assert api.sql("select count(*) from requests where body ? 'stream'")[0][0] == 3
    eventually(lambda: api.sql("select count(*) from requests where status = 'cancelled'")[0][0] == 2)
    cancelled = api.sql("select idempotency_key, body from requests where status = 'cancelled'")
    assert [(row.idempotency_key, row.body["background"]) for row in cancelled] == [(None, False)] * 2


def test_a_client_that_retries_without_a_key_has_one_request_at_a_time(web: WebProcess, api: Api):
    with (
        OpenAI(api_key=api.key, base_url=f"{web.url}/v1", timeout=0.5, max_retries=2) as client,
        pytest.raises(APITimeoutError),
    ):
        client.responses.create(model="words", input="eins zwei")
    eventually(lambda: api.sql("select count(*) from requests where status = 'cancelled'")[0][0] == 3)
    together = """select count(*) from requests one join requests next on next.arrived_at > one.arrived_at
        and next.arrived_at < coalesce(one.finished_at, one.cancel_requested_at)"""
    assert api.sql(together)[0][0] == 0


def test_a_request_sent_ahead_is_no_sign_that_the_client_leaves(web: WebProcess, api: Api):
    with posted(web, api) as client:
        stored(api, 1)
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        api.sql("update requests set status = 'completed', output_text = 'one', output_tokens = 1, finished_at = now()")
        answers = received(client, b'{"status":"ok"}')
        assert answers.count(b"HTTP/1.1 200") == 2

"""Streams end at any moment without a connection that nobody closes, and only with a token."""

import asyncio
import gc
import json
import threading
import warnings
from collections.abc import Iterator
from time import monotonic
from typing import Any

import httpx
import pytest

from inference.engine_requests import DecodingRequest
from inference.remote.remote_row import RemoteRow
from inference.remote.row_stream import EndableTask, StreamTerms, stream_once
from inference.remote.server_capabilities import ProbedServer, ServerCapabilities
from inference.remote.server_errors import ServerFailed

CONNECTIONS = 12
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class IdleServer:
    """Answers every request, and can close all connections, which the client then finds expired."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()


async def end_after(steps: int) -> None:
    """Begin a request, which closes expired connections, and end it after this many turns of the event loop."""
    idle = IdleServer()
    server = await asyncio.start_server(idle.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, trust_env=False) as client:

        async def ask() -> None:
            await client.get("/")

        await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
        await idle.hang_up()
        task = EndableTask(ask(), asyncio.get_running_loop())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.end()
        for _ in range(10 * CONNECTIONS):
            await asyncio.sleep(0)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("steps", range(0, 2 * CONNECTIONS, 2))
def test_a_request_that_is_ended_at_any_moment_leaves_no_connection_open(loop, steps):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run_coroutine_threadsafe(end_after(steps), loop).result(20)
        gc.collect()
    assert [str(one.message) for one in seen if "unclosed" in str(one.message)] == []


def test_work_that_is_ended_before_it_began_never_begins(loop):
    begun = threading.Event()

    async def work() -> None:
        begun.set()

    async def end_at_once() -> None:
        EndableTask(work(), loop).end()
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(end_at_once(), loop).result(20)
    assert not begun.is_set()


def test_ending_what_is_over_is_harmless(loop):
    over = threading.Event()

    async def work() -> None:
        over.set()

    task = EndableTask(work(), loop)
    assert over.wait(20)
    task.end()
    task.end()


def row_after(*events: dict[str, Any]) -> RemoteRow:
    """A row of a server that answers with text, after it has sent these events."""
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=stream))
    row = RemoteRow(DecodingRequest("a", (1,), 9), 9, 9, by_ids=False, resumes=False, inserted_at=monotonic())

    async def serve() -> None:
        server = ProbedServer("http://h", "openai", "m", ServerCapabilities())
        async with httpx.AsyncClient(base_url="http://h", transport=transport) as client:
            await stream_once(client, server, row, StreamTerms(5.0, None))

    asyncio.run(serve())
    return row


END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def test_a_text_without_a_character_is_an_answer_only_if_its_server_counts_a_token():
    assert row_after(END, {"choices": [], "usage": {"completion_tokens": 1}}).reason == "eos"
    for events in ((END,), (END, {"choices": [], "usage": {"completion_tokens": 0}})):
        with pytest.raises(ServerFailed, match="without a token"):
            row_after(*events)

"""Serves one row in the event loop: sends its request to the server, reads the stream, retries after a failure."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httpx
from anyio import CancelScope, current_time, fail_after

from inference.answer_text import Detokenizer
from inference.engine_requests import FinishReason
from inference.remote.remote_row import RemoteRow
from inference.remote.server_capabilities import ProbedServer
from inference.remote.server_errors import RowRefused, ServerBusy, ServerFailed, ServerFault, ServerGarbage, ServerLost
from inference.remote.wire_formats import WIRE_FORMATS, Chunk


class EndableTask:
    """Runs a coroutine in the event loop of another thread; any thread may create and end it.

    It cancels an anyio scope instead of the asyncio task, because httpx shields the closing of connections only from
    the cancellation of a scope: a task that is cancelled while it closes expired connections would leave the others
    open.
    """

    def __init__(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._scope: CancelScope | None = None
        self._ended = False
        self._future = asyncio.run_coroutine_threadsafe(self._run(), loop)  # an event loop keeps only a weak reference

    def end(self) -> None:
        """Cancels the work; does nothing if it is over."""
        self._loop.call_soon_threadsafe(self._end)

    async def _run(self) -> None:
        if self._ended:
            self._work.close()
            return
        with CancelScope() as self._scope:
            await self._work

    def _end(self) -> None:
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()


BUSY = frozenset({429, 503, 529})
REFUSED = frozenset({400, 413, 422})
KEEP_ROW_WHILE_BUSY_S = 10.0  # a row waits for a busy server, which will soon have a place for it. Not tuned
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0  # the wait doubles from the first to the longest; not tuned
LONGEST_LINE = 2**20  # the most bytes of one event; a chunk has some hundred bytes


@dataclass(frozen=True, slots=True)
class StreamListener:
    """The callbacks of a stream, all called in the event loop."""

    ended: Callable[[RemoteRow], None]
    silent: Callable[[str], None]  # the server gave no token for too long
    busy: Callable[[str], Awaitable[bool]]  # the server refused a row because it is full; returns whether to wait
    trial: Callable[[str], Awaitable[bool]]  # the server failed for this reason; returns whether it answers a trial
    usable: Callable[[], bool]  # returns whether requests may be sent now


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """The parameters of every stream: the seconds without a token after which it is given up, and the detokenizer."""

    silent_s: float
    detokenizer: Detokenizer | None


async def serve_row(
    client: httpx.AsyncClient, server: ProbedServer, row: RemoteRow, listener: StreamListener, terms: StreamTerms
) -> None:
    """Serves a row until it ends or is taken out.

    The row ends as `unfinished` if the server is at fault or busy for too long, and as `failed` or `refused` if the
    server did not answer the row, but then answers a trial.
    """
    retry_s = FIRST_RETRY_S
    while row.runs:
        wait_s, before = retry_s, row.tokens
        try:
            if listener.usable():
                await _until_it_ends(client, server, row, terms)
        except ServerBusy as error:
            wait_s = max(retry_s, error.retry_after_s)
            if not await listener.busy(str(error)):
                row.end("unfinished")
        except TimeoutError:  # another server may be faster
            row.lost = True
            listener.silent(f"no token within {terms.silent_s:g} s")
            row.end("unfinished")
        except (RowRefused, ServerFailed) as error:  # a trial shows whether the row or the server is the cause
            blamed: FinishReason = "refused" if isinstance(error, RowRefused) else "failed"
            row.streaming = False
            row.end(blamed if await listener.trial(str(error)) else "unfinished", str(error))
        except (httpx.HTTPError, httpx.StreamError, ServerLost) as error:
            streamed, row.streaming, fault = row.streaming, False, str(error) or type(error).__name__
            answers = await listener.trial(fault)
            row.lost, row.broke = streamed and not answers, answers
            goes_on = row.resumes and row.tokens > before  # else the row would begin anew without end
            row.end("failed" if answers and not goes_on else "unfinished", fault)
        finally:
            row.streaming = False
        if row.runs and monotonic() + wait_s > row.inserted_at + KEEP_ROW_WHILE_BUSY_S:
            row.end("unfinished")
        elif row.runs:
            retry_s = min(LONGEST_RETRY_S, 2 * retry_s)
            await asyncio.sleep(wait_s)
    if row.reason is not None:
        listener.ended(row)


async def _until_it_ends(client: httpx.AsyncClient, server: ProbedServer, row: RemoteRow, terms: StreamTerms) -> None:
    """Calls `stream_once`, and ignores its errors once the row has ended: a whole answer calls for no trial."""
    try:
        await stream_once(client, server, row, terms)
    except (TimeoutError, httpx.HTTPError, httpx.StreamError, ServerFault):
        if row.runs:
            raise


async def stream_once(client: httpx.AsyncClient, server: ProbedServer, row: RemoteRow, terms: StreamTerms) -> None:
    """Sends one request and reads its stream; raises a ServerFault, ServerBusy, or TimeoutError."""
    wire = WIRE_FORMATS[server.kind]
    body = wire.body(server, row.request())
    with fail_after(terms.silent_s) as silence:
        async with client.stream("POST", wire.path, json=body) as answer:
            if answer.status_code in BUSY:
                raise ServerBusy(answer.status_code, retry_after_s(answer.headers.get("retry-after")))
            if not answer.is_success:
                message = f"status {answer.status_code}: {_error_message(await _start_of(answer))}"
                raise RowRefused(message) if answer.status_code in REFUSED else ServerFailed(message)
            row.streaming = True
            async for event in _events(answer):
                silence.deadline = current_time() + terms.silent_s
                chunk = wire.read(event)
                if row.reason is not None:  # once the row has ended, only the numbers of tokens are read
                    chunk = Chunk(counted=chunk.counted, cached=chunk.cached)
                ended = row.take(chunk, monotonic(), terms.detokenizer)
                if ended is not None and chunk.reason is None:
                    return  # closes the connection, which ends the row in the server
    if row.runs:
        raise ServerFailed("it answered without a token") if row.said else ServerLost("its stream broke off")


async def _events(answer: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
    """Yields the JSON objects of a stream of server-sent events; raises ServerGarbage."""
    async for line in _lines(answer):
        if not line.startswith(b"data:"):
            if line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise ServerGarbage("a line that is no event")
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            continue
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ServerGarbage("an event that is no JSON") from error
        if not isinstance(event, Mapping):
            raise ServerGarbage("an event that is no object")
        yield event


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yields the lines of an answer without line ends; raises ServerGarbage for a line longer than LONGEST_LINE."""
    rest = b""
    async for part in answer.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
        if len(rest) > LONGEST_LINE:
            raise ServerGarbage("an endless line")
    if rest:
        yield rest


async def _start_of(answer: httpx.Response) -> bytes:
    """Returns only the first part of a body, because a hostile body may be endless."""
    async for part in answer.aiter_bytes():
        return part
    return b""


def retry_after_s(value: str | None) -> float:
    """Returns the seconds of a Retry-After header, at most LONGEST_RETRY_S, or 0 for a date or no header."""
    try:
        return min(LONGEST_RETRY_S, max(0.0, float(value or 0)))
    except ValueError:
        return 0.0


def _error_message(body: bytes) -> str:
    """Returns the message in the body of an error, or the beginning of the body."""
    try:
        found = json.loads(body)
        error = found.get("error", found.get("detail", found.get("message")))
        return str(error.get("message", error) if isinstance(error, Mapping) else error)
    except (ValueError, AttributeError, RecursionError):
        return body[:200].decode(errors="replace")

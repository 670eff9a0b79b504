"""The commands' HTTP client of /v1: retries after temporary errors, and turns other errors into messages."""

import json
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import click
import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception, retry_if_result, stop_after_attempt

from cli.output import CommandFailed, Unreachable

OPEN_STATES = ("queued", "in_progress")  # the statuses of responses that are not final
RETRIED_STATUSES = frozenset({408, 429, 502, 503, 504})  # timeouts, rate limits, a service that restarts
# The longest pause between two attempts. The pauses of 8 attempts add up to 26 s, enough for a restart. Not tuned.
MAX_PAUSE_S = 10.0
SAID_AT = 3  # the attempt after whose failure the user is told to wait, one second after the first; not tuned

Json = dict[str, Any]


class ServiceError(CommandFailed):
    """The service refused a call; `status` is the HTTP status, `code` that of the error, if it has one."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        self.status, self.code = status, code
        super().__init__(message)


class Client:
    """A client of one service with one API key; a POST can be repeated, because it carries an Idempotency-Key."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        attempts: int = 8,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take a `url` with or without /v1; try a call up to `attempts` times if the service is unreachable or busy."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._sleep = sleep
        self._retrying = Retrying(
            sleep=sleep,
            stop=stop_after_attempt(attempts),
            wait=_pause_s,
            before_sleep=self._say_that_it_waits,
            retry=retry_if_exception(_is_temporary) | retry_if_result(lambda one: one.status_code in RETRIED_STATUSES),
            retry_error_callback=_last_outcome,  # returns the last answer, or raises its exception
        )
        headers = {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=30.0, limits=limits, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def create(self, body: Json, key: str | None = None) -> Json:
        """POST /v1/responses in background mode; calls with the same idempotency `key` submit one request."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.call("POST", "responses", json={**body, "background": True}, headers=headers)

    def stream(self, body: Json) -> Generator[Json, None, None]:
        """POST /v1/responses as a stream: its events as they come, without retries."""
        for line in lines_of(self._pieces("POST", "/v1/responses", json={**body, "stream": True})):
            if line.startswith(b"data:"):
                yield json.loads(line.removeprefix(b"data:"))

    def retrieve(self, id: str, wait_s: int = 0) -> Json:
        """GET /v1/responses/{id}, answered after `wait_s` at the latest, or when the response is final."""
        headers = {"Prefer": f"wait={wait_s}"} if wait_s else {}
        return self.call("GET", "responses", id, headers=headers)

    def cancel(self, id: str) -> Json:
        """POST /v1/responses/{id}/cancel."""
        return self.call("POST", "responses", id, "cancel")

    def responses(self, **query: str) -> Iterator[Json]:
        """GET /v1/responses, page after page."""
        parameters: dict[str, str] = {"limit": "100", **query}
        while True:
            page = self.call("GET", "responses", params=parameters)
            yield from page["data"]
            if not page["has_more"]:
                return
            parameters["after"] = page["last_id"]

    def upload(self, path: Path) -> Json:
        """POST /v1/files, without reading the whole file first."""
        with path.open("rb") as file:
            parts = {"file": (path.name, file, "application/jsonl")}
            return self.call("POST", "files", rewind=file, files=parts, data={"purpose": "batch"})

    def content(self, file_id: str) -> Iterator[bytes]:
        """GET /v1/files/{id}/content, piece by piece, without retries."""
        return self._pieces("GET", below_v1("files", file_id, "content"))

    def results(self, id: str, format: str) -> Iterator[bytes]:
        """GET /v1/batches/{id}/results, piece by piece, without retries."""
        return self._pieces("GET", below_v1("batches", id, "results"), params={"format": format})

    def _pieces(self, method: str, path: str, **arguments: Any) -> Iterator[bytes]:
        try:
            with self._http.stream(method, path, **arguments) as answer:
                if not answer.is_success:
                    answer.read()
                    _content(answer)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise Unreachable(f"no answer from {self.url}: {error}") from error

    def create_batch(self, body: Json, key: str | None = None) -> Json:
        """POST /v1/batches."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.call("POST", "batches", json=body, headers=headers)

    def batch(self, id: str) -> Json:
        """GET /v1/batches/{id}."""
        return self.call("GET", "batches", id)

    def act_on_batch(self, id: str, action: str) -> Json:
        """POST /v1/batches/{id}/{action}: cancel, pause or resume."""
        return self.call("POST", "batches", id, action)

    def model(self) -> str:
        """GET /v1/models: the name of the first model."""
        return str(self.call("GET", "models")["data"][0]["id"])

    def stats(self, since: float | None = None, until: float | None = None) -> Json:
        """GET /v1/magnus/stats: the service's figures between two instants of its own clock."""
        window = {"since": since, "until": until}
        parameters = {name: repr(value) for name, value in window.items() if value is not None}
        return self.call("GET", "magnus", "stats", params=parameters)

    def usage(self, **query: str) -> Json:
        """GET /v1/magnus/usage."""
        return self.call("GET", "magnus", "usage", params=query)

    def usage_table(self, **query: str) -> str:
        """GET /v1/magnus/usage as CSV."""
        answer = self._answer("GET", "/v1/magnus/usage", params={**query, "format": "csv"})
        if not answer.is_success:
            _content(answer)
        return answer.text

    def wait(self, id: str, timeout_s: float | None = None) -> Json:
        """Poll until the response is final or `timeout_s` is over; return its last state."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.05
        while True:
            response = self.retrieve(id)
            if response["status"] not in OPEN_STATES:
                return response
            if deadline is not None and time.monotonic() >= deadline:
                return response
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.5, 1.0)

    def _say_that_it_waits(self, call: RetryCallState) -> None:
        if call.attempt_number == SAID_AT and call.outcome is not None and call.outcome.failed:
            click.echo(f"no answer from {self.url} yet, trying again for half a minute", err=True)

    def call(self, method: str, *path: str, **arguments: Any) -> Json:
        """Call the endpoint of these parts of a path below /v1; `arguments` are httpx's. Raises ServiceError."""
        return _content(self._answer(method, below_v1(*path), **arguments))

    def _answer(self, method: str, path: str, *, rewind: BinaryIO | None = None, **arguments: Any) -> httpx.Response:
        """Send a request until it is answered or no attempt is left; raise Unreachable if no attempt had an answer."""

        def send() -> httpx.Response:
            if rewind is not None:
                rewind.seek(0)
            return self._http.request(method, path, **arguments)

        try:
            return self._retrying(send)
        except httpx.TransportError as error:
            raise Unreachable(f"no answer from {self.url}: {error}") from error
        except httpx.InvalidURL as error:
            raise Unreachable(f"{self.url} is no address of a service: {error}") from error


def _is_temporary(error: BaseException) -> bool:
    return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)


def _pause_s(call: RetryCallState) -> float:
    """Return the seconds before the next attempt: what the service asks for, or 0.25 s, doubled with each attempt."""
    pause_s = 0.25 * 2.0 ** (call.attempt_number - 1)
    if call.outcome is not None and not call.outcome.failed:
        pause_s = float(call.outcome.result().headers.get("Retry-After", pause_s))
    return min(pause_s, MAX_PAUSE_S)


def _last_outcome(call: RetryCallState) -> Any:
    return call.outcome.result() if call.outcome is not None else None


def _content(answer: httpx.Response) -> Json:
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        where = f"{answer.request.method} {answer.request.url}"
        raise ServiceError(answer.status_code, f"{where} answered {answer.status_code}, and not as Magnus does")
    if answer.is_success:
        return content
    error = content.get("error") or {}
    message = f"{answer.status_code}: {error.get('message', answer.reason_phrase)}"
    if answer.status_code == 401:
        message += " (give --api-key, or make one with `magnus keys create`)"
    raise ServiceError(answer.status_code, message, error.get("code"))


def below_v1(*parts: str) -> str:
    """Return the path of these parts below /v1, each quoted."""
    return "/".join(["/v1", *(quote(part, "") for part in parts)])


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a body; a line ends with a line feed alone, as texts may have Unicode's other line ends."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest


def output_text(response: Json) -> str:
    """Return the text of an answer's messages, without the model's thinking and its function calls."""
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])

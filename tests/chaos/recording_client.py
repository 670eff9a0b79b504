"""A client that submits over HTTP until each request is accepted, and records every id and every reply.

It retries with the same Idempotency-Key, as a careful client does, so that a request is accepted once after any number
of failed replies.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import httpx

from benchmarks.harness import in_thread, until
from inference.toy.toy_applications import toy_requests
from tests.chaos.promised_service import PromisedService

SENDERS = 8  # calls in flight at once; more would only compete with the service for the same cores
WARM_AFTER = 100  # answers before the measurement: several batches of each worker
WARM_WITHIN_S = 120.0
GIVE_UP_S = 180.0  # seconds for one request; longer than any fault lasts
Body = dict[str, Any]


def settled_after(long: bool) -> int:
    """Answers before a rate is measured; in the long form the trainer's early refits are over by then."""
    return 4_500 if long else WARM_AFTER


def recovery_s(long: bool) -> float:
    """Seconds after which the rate of answers must be back."""
    return 30.0 if long else 8.0


def slack(long: bool) -> float:
    """What bounds on ratios are multiplied by: the short form's windows hold tens of answers, which vary by a fifth."""
    return 1.0 if long else 0.5


class Reply(NamedTuple):
    """One POST: when it began (this host's clock), seconds it took, its status (0: no reply), its Retry-After."""

    at: float
    seconds: float
    status: int
    retry_after: str | None = None


class RecordingClient:
    """Submits and records; `accepted` are the ids that the service promised to answer."""

    def __init__(self, url: str, key: str, timeout_s: float = 10.0) -> None:
        """`timeout_s` is the time-out of one POST."""
        limits = httpx.Limits(max_connections=SENDERS, max_keepalive_connections=SENDERS)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, limits=limits)
        self._stopping = threading.Event()
        self.accepted: list[str] = []
        self.replies: list[Reply] = []

    def __enter__(self) -> "RecordingClient":
        return self

    def __exit__(self, *error: object) -> None:
        self.give_up()
        self._http.close()

    def give_up(self) -> None:
        """Stop retrying from now on."""
        self._stopping.set()

    def post(self, body: Body, key: str | None = None) -> httpx.Response | None:
        """Post once and record the reply and its id; None if there was no reply."""
        began, clock = time.monotonic(), time.time()
        # httpx's own JSON would refuse NaN and lone surrogates, which hostile clients send
        content = json.dumps({"model": "bundled", "background": True, **body})
        try:
            answer = self._http.post("/v1/responses", content=content, headers={"Idempotency-Key": key} if key else {})
        except httpx.TransportError:
            self.replies.append(Reply(clock, time.monotonic() - began, 0))
            return None
        took_s = time.monotonic() - began
        self.replies.append(Reply(clock, took_s, answer.status_code, answer.headers.get("Retry-After")))
        if answer.is_success:
            self.accepted.append(answer.json()["id"])
        return answer

    def submit(self, body: Body, patience_s: float = GIVE_UP_S) -> str | None:
        """Post until the request is accepted; returns its id, or None if it was refused or given up."""
        key, deadline = uuid.uuid4().hex, time.monotonic() + patience_s
        while time.monotonic() < deadline and not self._stopping.is_set():
            answer = self.post(body, key)
            if answer is not None and answer.is_success:
                return str(answer.json()["id"])
            if answer is not None and answer.status_code < 429 and answer.status_code not in (408, 409):
                return None  # refused for good
            self._stopping.wait(0.25)
        return None

    def submit_all(
        self, bodies: Sequence[Body], rate: float | None = None, patience_s: float = GIVE_UP_S
    ) -> list[str | None]:
        """Submit each request, `rate` a second or as fast as they are accepted; returns once all are accepted."""
        began = time.monotonic()

        def one(number: int) -> str | None:
            if rate:
                self._stopping.wait(max(0.0, began + number / rate - time.monotonic()))
            return self.submit(bodies[number], patience_s)

        with ThreadPoolExecutor(SENDERS) as pool:
            try:
                return list(pool.map(one, range(len(bodies))))
            except BaseException:
                self._stopping.set()
                raise

    def posted(self, since: float, until: float) -> list[Reply]:
        """The replies to POSTs that began between two instants of this host's clock."""
        return [reply for reply in self.replies if since <= reply.at < until]


def bodies(count: int, seed: int) -> list[Body]:
    """Make `count` toy requests as a client sends them."""
    return [
        {"input": toy.input, "instructions": toy.instruction, "metadata": {"application": toy.application}}
        for toy in toy_requests(count, seed, median_words=8.0, max_words=30)
    ]


def client_of(service: PromisedService, timeout_s: float = 10.0) -> RecordingClient:
    """Open a client of this service."""
    return RecordingClient(service.url, service.key, timeout_s)


@contextmanager
def in_background(client: RecordingClient, work: Sequence[Body], rate: float | None = None) -> Iterator[None]:
    """Submit requests from a thread while the context runs; the context ends when all are accepted."""
    thread = threading.Thread(target=client.submit_all, args=(work, rate), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        client.give_up()
        raise
    finally:
        thread.join()


@contextmanager
def pressure(
    service: PromisedService, client: RecordingClient, waiting: int = 150, warm_after: int = WARM_AFTER
) -> Iterator[None]:
    """Keep the workers busy: this number of requests waits at each moment, however fast they are answered.

    The context begins after `warm_after` answers, so that the start is in no measured rate.
    """
    drawn = endless(17)

    def fill(ended: threading.Event) -> None:
        with ThreadPoolExecutor(SENDERS) as pool:
            missing = waiting
            while not ended.is_set():
                list(pool.map(client.submit, [next(drawn) for _ in range(max(0, missing))]))
                ended.wait(0.1)
                with suppress(Exception):  # Postgres may be broken just now
                    missing = waiting - service.waiting()

    answered = "select count(*) from chaos_endings"
    before = service.value(answered)
    with in_thread(fill):
        until(lambda: service.value(answered) >= before + warm_after, WARM_WITHIN_S)
        yield


def endless(seed: int) -> Iterator[Body]:
    """Yield toy requests without end."""
    while True:
        yield from bodies(1000, seed)
        seed += 1

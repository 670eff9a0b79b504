"""Sends the events that are due, many at once and each for a bounded time; any number of processes may do so.

What a sender has claimed when it dies is due again after CLAIM_S. An endpoint that answers late or not at all keeps
few of the sender's places, so that the others' events are not delayed.
"""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import httpcore
import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.webhooks import webhook_deliveries
from models.webhooks.webhook_deliveries import ClaimedDelivery, DeliveryResult
from tasks.webhooks.checked_connections import CheckedBackend, ForbiddenAddress
from tasks.webhooks.webhook_signature import event_body, signed_headers

LOOK_EVERY_S = 1.0  # for events that are due: one statement. An event waits half of it. Not tuned otherwise.
MOST_AT_ONCE = 256  # deliveries in flight; each is a coroutine and a socket. Not tuned.
MOST_NAMES = 64  # that are resolved at once; a name server that is silent keeps a thread for its resolver's time-out
EACH, EACH_FAILING = 16, 1  # of them to one endpoint, and to one whose last answer was no success. Not tuned.
ANSWER_WITHIN_S = 15.0  # resolving, connecting, sending and the answer together; Standard Webhooks says 15 to 30
CLAIM_S = 60.0  # longer than ANSWER_WITHIN_S and the write of its result
ANSWER_BYTES = 16_384  # read of an answer, so that its connection can be used again; of a longer one it is closed
FIRST_RETRY_S, RETRY_GROWTH, LONGEST_RETRY_S = 5.0, 4.0, 7200.0  # 5 s, 20 s, 80 s, 5 min, 21 min, 85 min, 2 h, 2 h, …
GIVE_UP_AFTER_S = 86_400.0  # since the event
STOP_WITHIN_S = 3.0  # for deliveries in flight when the process stops; the others are due again after CLAIM_S

log = structlog.get_logger()


def retry_in_s(attempts: int) -> float:
    """How long to wait after so many failed attempts."""
    return min(FIRST_RETRY_S * RETRY_GROWTH ** min(attempts - 1, 16), LONGEST_RETRY_S)


class WebhookSender(Thread):
    """A thread with an event loop, and a database connection of its own."""

    def __init__(self, database: Engine, private: bool, look_every_s: float = LOOK_EVERY_S) -> None:
        """`private`: endpoints may have private, loopback and link-local addresses."""
        super().__init__(name="webhooks", daemon=True)
        self._database, self._private, self._look_every_s = database, private, look_every_s
        self._stopping = Event()

    def run(self) -> None:
        """Send until stopped."""
        asyncio.run(self._send())

    def stop(self) -> None:
        """Claim nothing more, and return once the results of what was in flight are written, if that ends soon."""
        self._stopping.set()
        self.join()

    async def _send(self) -> None:
        # threads of their own: whoever has a slow name server must not hold up the database's calls
        resolving = ThreadPoolExecutor(MOST_NAMES, thread_name_prefix="webhook-names")
        backend = CheckedBackend(self._private, resolving)
        in_flight: set[asyncio.Task[DeliveryResult]] = set()
        running: Counter[str] = Counter()
        async with httpcore.AsyncConnectionPool(
            max_connections=MOST_AT_ONCE, keepalive_expiry=CLAIM_S, network_backend=backend
        ) as pool:
            while not self._stopping.is_set():
                claimed = await self._claim_beside(in_flight, running)
                running.update(delivery.endpoint_id for delivery in claimed)
                in_flight |= {asyncio.create_task(deliver(pool, delivery)) for delivery in claimed}
                in_flight = await self._collect(in_flight, running, self._look_every_s)
            await self._collect(in_flight, running, STOP_WITHIN_S, asyncio.ALL_COMPLETED)
        resolving.shutdown(wait=False, cancel_futures=True)

    async def _collect(
        self,
        in_flight: set[asyncio.Task[DeliveryResult]],
        running: Counter[str],
        within_s: float,
        until: str = asyncio.FIRST_COMPLETED,
    ) -> set[asyncio.Task[DeliveryResult]]:
        """Wait for results, write those that came, and return what is still in flight."""
        if not in_flight:
            self._stopping.wait(within_s)  # there is nothing else that this thread's loop could run
            return in_flight
        done, left = await asyncio.wait(in_flight, timeout=within_s, return_when=until)
        results = [task.result() for task in done]
        running.subtract(result.endpoint_id for result in results)
        if results:
            await asyncio.to_thread(self._write, results)
        return left

    async def _claim_beside(
        self, in_flight: set[asyncio.Task[DeliveryResult]], running: Counter[str]
    ) -> list[ClaimedDelivery]:
        """Claim what is due; in another thread only while deliveries are under way, which must go on meanwhile."""
        if not in_flight:
            return self._claim(MOST_AT_ONCE, {})
        return await asyncio.to_thread(self._claim, MOST_AT_ONCE - len(in_flight), dict(running))

    def _claim(self, most: int, running: dict[str, int]) -> list[ClaimedDelivery]:
        try:
            with self._database.begin() as connection:
                return webhook_deliveries.claim(
                    connection, most, running, each=EACH, each_failing=EACH_FAILING, claim_s=CLAIM_S
                )
        except SQLAlchemyError as error:  # the next look may do better
            log.warning("webhooks not claimed", error=str(error))
            return []

    def _write(self, results: list[DeliveryResult]) -> None:
        try:
            with self._database.begin() as connection:
                webhook_deliveries.write_results(connection, results, GIVE_UP_AFTER_S)
        except SQLAlchemyError as error:  # they are due again once their claims end, under the same ids
            log.warning("webhook results not written", results=len(results), error=str(error))


async def deliver(pool: httpcore.AsyncConnectionPool, delivery: ClaimedDelivery) -> DeliveryResult:
    """One attempt; redirects are no success. Never raises for what an endpoint does."""
    status, error = None, None
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            status = await _post(pool, delivery)
    except TimeoutError:
        error = f"no answer within {ANSWER_WITHIN_S:g} s"
    except ForbiddenAddress:
        error = "its address is private, loopback or link-local"
    except Exception as failure:  # whatever an endpoint can make a client raise
        error = f"{type(failure).__name__}: no answer"
    if status is not None and not 200 <= status < 300:
        error = f"HTTP status {status}"
    return DeliveryResult(
        delivery.id,
        delivery.endpoint_id,
        delivery.attempts,
        status,
        error,
        None if error is None else retry_in_s(delivery.attempts),
    )


async def _post(pool: httpcore.AsyncConnectionPool, delivery: ClaimedDelivery) -> int:
    body = event_body(delivery)
    url = httpcore.URL(delivery.url)
    default_port = {b"http": 80, b"https": 443}[url.scheme]
    host = url.host if url.port in (None, default_port) else url.host + b":%d" % url.port
    headers = {
        "host": host.decode(),
        "content-type": "application/json",
        "content-length": str(len(body)),
        "user-agent": "Magnus-Webhooks/1",
        **signed_headers(delivery, body),
    }
    async with pool.stream("POST", url, headers=list(headers.items()), content=body) as answer:
        read = 0
        async for chunk in answer.aiter_stream():
            read += len(chunk)
            if read > ANSWER_BYTES:
                break
        return int(answer.status)

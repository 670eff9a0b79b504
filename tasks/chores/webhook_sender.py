"""Sends the events that are due, many at once and each for a bounded time; any number of processes may do so.

Deliveries that a sender had claimed when it died are due again after CLAIM_S. An endpoint that fails has one delivery
in flight, a tenant has at most a quarter of all deliveries in flight, and tenants take turns: so a slow endpoint does
not delay the events of others.
"""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import httpcore
import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.connections.session import in_transaction
from models.webhooks import webhook_deliveries
from models.webhooks.webhook_deliveries import ClaimedDelivery, DeliveryResult
from tasks.chores.webhook_delivery import CheckedBackend, deliver

LOOK_EVERY_S = 1.0  # between two queries for due events; an event waits half as long on average. Not tuned otherwise.
MOST_AT_ONCE = 256  # deliveries in flight; each is a coroutine and a socket. Not tuned.
MOST_NAMES = 64  # host names resolved at once; a silent name server blocks a thread until its time-out
EACH, EACH_FAILING = 16, 1  # deliveries in flight to one endpoint, and to one whose last delivery failed. Not tuned.
EACH_TENANT = 64  # deliveries in flight of one tenant: at most a quarter of MOST_AT_ONCE. Not tuned.
CLAIM_S = 60.0  # longer than an attempt, ANSWER_WITHIN_S, and the write of its result
GIVE_UP_AFTER_S = 86_400.0  # seconds from an event until its deliveries are given up
STOP_WITHIN_S = 3.0  # a stopping process waits this long for deliveries in flight; others are due again after CLAIM_S

log = structlog.get_logger()


class WebhookSender(Thread):
    """A thread with an event loop, and a database connection of its own."""

    def __init__(self, database: Engine, private: bool, look_every_s: float = LOOK_EVERY_S) -> None:
        """`private` allows endpoints with private, loopback and link-local addresses."""
        super().__init__(name="webhooks", daemon=True)
        self._database, self._private, self._look_every_s = database, private, look_every_s
        self._stopping = Event()

    def run(self) -> None:
        """Send due events until stopped."""
        asyncio.run(self._send())

    def stop(self) -> None:
        """Lets the thread claim nothing more; returns once deliveries in flight have ended or STOP_WITHIN_S is over."""
        self._stopping.set()
        self.join()

    async def _send(self) -> None:
        # name servers have threads of their own, so that slow ones do not delay calls of the database
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
        """Wait for results and write them; returns the deliveries that are still in flight."""
        if not in_flight:
            self._stopping.wait(within_s)  # blocks the event loop, which has nothing else to run
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
        """Claims due deliveries; while others are in flight, in another thread, so that they go on."""
        if not in_flight:
            return self._claim(MOST_AT_ONCE, {})
        return await asyncio.to_thread(self._claim, MOST_AT_ONCE - len(in_flight), dict(running))

    def _claim(self, most: int, running: dict[str, int]) -> list[ClaimedDelivery]:
        try:
            claim = in_transaction(self._database, webhook_deliveries.claim)
            limits = {"each": EACH, "each_failing": EACH_FAILING, "each_tenant": EACH_TENANT}
            return claim(most, running, **limits, claim_s=CLAIM_S)
        except SQLAlchemyError as error:  # the next claim, LOOK_EVERY_S later, tries again
            log.warning("webhooks not claimed", error=str(error))
            return []

    def _write(self, results: list[DeliveryResult]) -> None:
        try:
            in_transaction(self._database, webhook_deliveries.write_results)(results, GIVE_UP_AFTER_S)
        except SQLAlchemyError as error:  # once their claims end, the deliveries are due again, under the same ids
            log.warning("webhook results not written", results=len(results), error=str(error))

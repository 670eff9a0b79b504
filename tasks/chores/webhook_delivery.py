"""Makes one attempt to deliver a webhook: event's body, signed headers, connection to a checked address, answer.

The event has the form of OpenAI's webhooks, the headers have that of Standard Webhooks. A host name is resolved once,
and the connection goes to the address that was checked. A name that resolves to a public address for the check and to
a private one a moment later therefore reaches nothing private.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
from collections.abc import Iterable
from concurrent.futures import Executor
from ipaddress import ip_address

import httpcore

from models.webhooks.webhook_deliveries import ClaimedDelivery, DeliveryResult
from models.webhooks.webhook_urls import is_public

ANSWER_WITHIN_S = 15.0  # for resolving, connecting, sending and the answer together; Standard Webhooks says 15 to 30
# At most this many bytes of an answer are read, so that its connection can be reused; after a longer one it is closed.
ANSWER_BYTES = 16_384
FIRST_RETRY_S, RETRY_GROWTH, LONGEST_RETRY_S = 5.0, 4.0, 7200.0  # 5 s, 20 s, 80 s, 5 min, 21 min, 85 min, 2 h, 2 h, …


def retry_in_s(attempts: int) -> float:
    """Returns how long to wait after this number of failed attempts."""
    return min(FIRST_RETRY_S * RETRY_GROWTH ** min(attempts - 1, 16), LONGEST_RETRY_S)


def event_body(delivery: ClaimedDelivery) -> bytes:
    """Returns the body, which has the same bytes at each attempt."""
    event = {
        "id": delivery.event_id,
        "object": "event",
        "type": delivery.type,
        "created_at": int(delivery.event_at),
        "data": {"id": delivery.object_id},
    }
    return json.dumps(event, separators=(",", ":")).encode()


def signed_headers(delivery: ClaimedDelivery, body: bytes) -> dict[str, str]:
    """Returns webhook-id, webhook-timestamp (of this attempt) and webhook-signature, made with each valid secret."""
    timestamp = str(int(delivery.now))
    secrets = [secret for secret in (delivery.secret, delivery.old_secret) if secret]
    return {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signature(secret, delivery.event_id, timestamp, body) for secret in secrets),
    }


def signature(secret: str, event_id: str, timestamp: str, body: bytes) -> str:
    """Returns `v1,` and the base64 of HMAC-SHA256 over id.timestamp.body; the key is the base64 after whsec_."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((event_id.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


class ForbiddenAddress(httpcore.ConnectError):
    """The endpoint's name has only private, loopback and link-local addresses, to which nothing is sent."""


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens httpcore's connections, but only to checked addresses; TLS still verifies the name."""

    def __init__(self, private: bool, resolving: Executor) -> None:
        """`private` allows every address; the threads of `resolving` wait for name servers."""
        self._private, self._resolving, self._backend = private, resolving, httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first allowed address that answers; raises ForbiddenAddress, httpcore.ConnectError."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._resolving, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} has no address") from error
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        allowed = [one for one in addresses if self._private or is_public(ip_address(one.partition("%")[0]))]
        if not allowed:
            raise ForbiddenAddress
        for address in allowed[:-1]:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(allowed[-1], port, timeout, local_address, socket_options)


async def deliver(pool: httpcore.AsyncConnectionPool, delivery: ClaimedDelivery) -> DeliveryResult:
    """Makes one attempt; a redirect counts as a failure. Raises no error, whatever the endpoint does."""
    status, error = None, None
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            status = await _post(pool, delivery)
    except TimeoutError:
        error = f"no answer within {ANSWER_WITHIN_S:g} s"
    except ForbiddenAddress:
        error = "its address is private, loopback or link-local"
    except Exception as failure:  # an endpoint can make a client raise many kinds of errors
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

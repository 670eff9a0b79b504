"""Calls over plain asyncio connections: a library's client would take as much of a machine's cores as the service.

httpx goes through all of its connections for each event; with a thousand of them it takes a core for half a minute.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def post(path: str, key: str, body: Mapping[str, Any]) -> bytes:
    """A POST as bytes."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def connect(url: str) -> Connection:
    """A connection to the service there."""
    address = urlsplit(url)
    return await asyncio.open_connection(address.hostname, address.port or 80)


def content_length(head: bytes) -> int:
    """The length that an answer's head names."""
    (value,) = (line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(value)


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, whose body is read too."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(content_length(head))
    return int(head[9:12])

"""Sends bodies that a service must refuse, and measures the time until the refusal and the memory that each takes.

The time runs from the first byte sent until the answer's status line, so it includes sending what the service reads.
"""

import asyncio
import contextlib
import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.api.measured_service import MeasuredFigure, MeasuredService, StartService, measured_service
from benchmarks.experiment import Experiment

WITHIN_S = 1  # the bound on the seconds until a refusal
# The most memory that a body may add. The largest body that is read has 8 MiB (MAGNUS_MAX_BODY_BYTES), and may be in
# memory as bytes and as text.
FLAT_MIB = 32
MIB = 2**20
PIECE = 2**16  # about this many bytes are sent at once
PATIENCE_S = 60.0
BOUNDARY = "boundary"
JSON = "application/json"
BEGIN = b'{"model": "bundled", "background": true, "input": '


@dataclass(frozen=True)
class Refused:
    """A body as a series of repeated parts; it is sent chunked if `with_length` is false."""

    name: str
    parts: tuple[tuple[bytes, int], ...]  # (bytes, number of times that they are sent)
    path: str = "/v1/responses"
    content_type: str = JSON
    encoding: str | None = None
    with_length: bool = True

    @property
    def size(self) -> int:
        """Return the length of the body in bytes."""
        return sum(len(part) * times for part, times in self.parts)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces of about PIECE bytes."""
        for part, times in self.parts:
            at_once = max(1, PIECE // max(1, len(part)))
            for start in range(0, times, at_once):
                yield part * min(at_once, times - start)


def refused_bodies(scale: int = 1) -> list[Refused]:
    """List all bodies; the sizes of the large ones are divided by `scale`."""
    noise = random.Random(1).randbytes(MIB // 4)
    bomb = gzip.compress(b" " * (MIB * 1000 // scale), mtime=0)
    form = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
    form += 'Content-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n'
    end, multipart = f"\r\n--{BOUNDARY}--\r\n".encode(), f"multipart/form-data; boundary={BOUNDARY}"
    long_line = ((form.encode(), 1), (b"x", 50 * MIB // min(scale, 5)), (end, 1))
    deep = 10_000
    return [
        Refused("random bytes as JSON", ((noise, 4),)),
        Refused("random bytes as gzip", ((noise, 4),), encoding="gzip"),
        Refused("random bytes as a file", ((noise, 4),), path="/v1/files", content_type=multipart),
        Refused("lists 10,000 deep", ((BEGIN, 1), (b"[", deep), (b"]", deep), (b"}", 1))),
        Refused("objects 10,000 deep", ((BEGIN, 1), (b'{"a":', deep), (b"1", 1), (b"}", deep + 1))),
        Refused("8 MB of open brackets", ((b"[", 8_000_000 // scale),)),
        Refused("a lone surrogate", ((BEGIN + rb'"\ud800"}', 1),)),
        Refused("a NUL", ((BEGIN + rb'"\u0000"}', 1),)),
        Refused("a text of 8 MB", ((BEGIN + b'"', 1), (b"word ", 1_600_000 // scale), (b'"}', 1))),
        Refused("100 MB with their length", ((BEGIN + b'"', 1), (b"x", 100_000_000 // scale), (b'"}', 1))),
        Refused("100 MB in chunks", ((BEGIN + b'"', 1), (b"x", 100_000_000 // scale), (b'"}', 1)), with_length=False),
        Refused("a gzip bomb of 1 MB for 1 GB", ((bomb, 1),), encoding="gzip"),
        Refused("a line of 50 MB", long_line, path="/v1/files", content_type=multipart),
    ]


async def send(service: MeasuredService, body: Refused) -> dict[str, Any]:
    """Send a body until the service answers; returns status, seconds, and the peak growth of the web process."""
    url, before = urlsplit(service.url), service.memory_mib()
    service.forget_peak()
    began = perf_counter()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    sending = asyncio.create_task(_send(writer, service, body))
    try:
        line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    except (TimeoutError, ConnectionError):
        line = b""
    took_s = perf_counter() - began
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    writer.close()
    return {
        "status": int(line[9:12]) if line.startswith(b"HTTP/1.1 ") else 0,
        "seconds": took_s,
        "bytes": body.size,
        "gained_mib": service.peak_mib() - before,
    }


async def _send(writer: asyncio.StreamWriter, service: MeasuredService, body: Refused) -> None:
    length = f"Content-Length: {body.size}" if body.with_length else "Transfer-Encoding: chunked"
    head = [
        f"POST {body.path} HTTP/1.1",
        "Host: here",
        f"Authorization: Bearer {service.key}",
        f"Content-Type: {body.content_type}",
        length,
        *([f"Content-Encoding: {body.encoding}"] if body.encoding else []),
    ]
    with contextlib.suppress(ConnectionError):
        writer.write("\r\n".join([*head, "", ""]).encode())
        for piece in body.pieces():
            writer.write(piece if body.with_length else b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if not body.with_length:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


def measure(start: StartService, scale: int) -> dict[str, Any]:
    """Measure each body, and whether the service still answers afterwards."""
    measured = MeasuredFigure()
    with start() as service:
        asyncio.run(send(service, Refused("a first one", ((b"[", 1000),))))  # not measured: it loads modules
        for body in refused_bodies(scale):
            figures = asyncio.run(send(service, body))
            measured.figures[body.name] = figures
            seconds, gained, status = figures["seconds"], figures["gained_mib"], figures["status"]
            ok = 400 <= status < 500 and seconds < WITHIN_S and gained < FLAT_MIB
            bound = f"refused within {WITHIN_S} s, {FLAT_MIB} MiB at most"
            measured.holds(body.name, bound, f"{status} in {seconds:.3f} s, {gained:.1f} MiB", ok)
        began = perf_counter()
        alive = httpx.get(f"{service.url}/healthz", timeout=PATIENCE_S).status_code == 200
        shown = f"{perf_counter() - began:.3f} s"
        measured.holds("afterwards: /healthz", "answers", shown, alive)
    return measured.as_run()


REFUSED = Experiment({"long": 1, "short": 20}, {"no worker": partial(measured_service, "--workers", "0")}, measure)

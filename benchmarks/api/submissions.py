"""Single submissions: as fast as 16 connections can, at a rate on a full database, and 100 posts under one key.

Calls go over plain asyncio connections. httpx checks all of its connections at each event, so that with a thousand of
them it takes a whole core for half a minute, as much as the service. The service has no workers; the sender's share of
the cores is measured too.
"""

import asyncio
import json
import random
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import httpx
from sqlalchemy import text

from benchmarks.api.measured_service import (
    MeasuredFigure,
    MeasuredService,
    StartService,
    measured_service,
    model_of,
)
from benchmarks.experiment import Experiment
from benchmarks.harness import spread
from benchmarks.inputs.filled_database import fill_service

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def post(path: str, key: str, body: Mapping[str, Any]) -> bytes:
    """Encode a POST as bytes."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def connect(url: str) -> Connection:
    """Open a connection to the service at this URL."""
    address = urlsplit(url)
    return await asyncio.open_connection(address.hostname, address.port or 80)


async def status_of(reader: asyncio.StreamReader) -> int:
    """Read the next answer with its body; returns its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length))
    return int(head[9:12])


# The words can be any, because no answer is read.
WORDS = ["red", "green", "blue", "one", "two", "three", "small", "big", "old", "new", "house", "tree", "river", "bird"]
CONNECTIONS, RACING = 16, 100  # connections that send without a pause, and posts at once under one Idempotency-Key
ANSWERED_WITHIN_S = 30.0  # a submission that has no answer after these seconds has failed
OPEN_CONNECTIONS = 64  # connections for submissions at a rate; 200 submissions a second may take 0.3 s each
RATE, P99_MS = 400, 100
BODIES = 500  # this many different bodies are sent in turn
UNPREDICTED = text("select count(*) from requests where predicted_tokens is null")
WARM_S = 3.0  # sending for these seconds before the measurement opens connections and fills query plans and caches


def body(model: str, rng: random.Random) -> dict[str, Any]:
    """Make a request of 5 to 40 words."""
    words = " ".join(rng.choices(WORDS, k=rng.randint(5, 40)))
    return {"model": model, "instructions": "Repeat the words.", "input": words, "background": True}


def posts(model: str, key: str) -> Iterator[bytes]:
    """Yield encoded requests without end."""
    rng = random.Random(1)
    made = [post("/v1/responses", key, body(model, rng)) for _ in range(BODIES)]
    while True:
        yield from made


async def send_on_one(url: str, requests: Iterator[bytes], until: float) -> list[tuple[int, float]]:
    """Send requests one after the other on one connection; returns the status and the seconds of each."""
    reader, writer = await connect(url)
    answers = []
    while (began := perf_counter()) < until:
        writer.write(next(requests))
        answers.append((await status_of(reader), perf_counter() - began))
    writer.close()
    return answers


async def submit_at_rate(url: str, requests: Iterator[bytes], rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Submit Poisson arrivals; a connection that is free takes the next arrival that is due; returns the figures.

    A latency counts from the instant at which its submission was due, so a service that falls behind shows it.
    """
    failures, seconds_late = list[str](), list[float]()
    connections = [await connect(url) for _ in range(OPEN_CONNECTIONS)]
    dues = arrival_instants(perf_counter(), rate, seconds, random.Random(seed))

    async def submit(connection: Connection) -> None:
        reader, writer = connection
        for due in dues:
            await asyncio.sleep(max(0.0, due - perf_counter()))
            try:
                async with asyncio.timeout(ANSWERED_WITHIN_S):
                    writer.write(next(requests))
                    status = await status_of(reader)
            except (OSError, EOFError) as error:  # TimeoutError is an OSError
                failures.append(type(error).__name__)
                writer.close()
                reader, writer = await connect(url)
                continue
            if status == 200:
                seconds_late.append(perf_counter() - due)
            else:
                failures.append(str(status))
        writer.close()

    await asyncio.gather(*map(submit, connections))
    return {
        "rate": rate,
        "seconds": seconds,
        "accepted": len(seconds_late),
        "failed": len(failures),
        "failures": sorted(set(failures)),
        "latency_ms": spread([1000 * late for late in seconds_late]),
    }


def arrival_instants(began: float, rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Yield the instants of Poisson arrivals at `rate` a second, for `seconds` from the instant `began` on."""
    due = began
    while (due := due + rng.expovariate(rate)) < began + seconds:
        yield due


async def send(service: MeasuredService, model: str, connections: int, seconds: float) -> dict[str, Any]:
    """Submit without a pause on this many connections for these seconds; returns the figures."""
    requests, began, cpu = posts(model, service.key), perf_counter(), process_time()
    calls = [send_on_one(service.url, requests, began + seconds) for _ in range(connections)]
    answers = [answer for each in await asyncio.gather(*calls) for answer in each]
    took_s = perf_counter() - began
    with service.database.connect() as connection:
        unpredicted = connection.execute(UNPREDICTED).scalar_one()
    ms = [1000 * latency for status, latency in answers if status == 200]
    return {
        "connections": connections,
        "seconds": took_s,
        "accepted": len(ms),
        "refused": len(answers) - len(ms),
        "accepted_per_s": len(ms) / took_s,
        "predicted_per_s": (len(ms) - unpredicted) / took_s,
        "latency_ms": spread(ms),
        "sender_cores": (process_time() - cpu) / took_s,
    }


async def race(service: MeasuredService, model: str) -> dict[str, Any]:
    """Post one body RACING times at once under one Idempotency-Key; counts answers, their ids and the stored jobs."""
    key, content = uuid.uuid4().hex, body(model, random.Random(2))
    headers = {"Authorization": f"Bearer {service.key}", "Idempotency-Key": key}
    limits = httpx.Limits(max_connections=RACING)
    async with httpx.AsyncClient(base_url=service.url, headers=headers, limits=limits, timeout=30.0) as client:
        answers = await asyncio.gather(*(client.post("/v1/responses", json=content) for _ in range(RACING)))
    with service.database.connect() as connection:
        stored = connection.execute(text("select count(*) from requests where idempotency_key = :key"), {"key": key})
        jobs = stored.scalar_one()
    return {
        "posts": RACING,
        "accepted": sum(answer.status_code == 200 for answer in answers),
        "ids": len({answer.json().get("id") for answer in answers}),
        "jobs": jobs,
    }


def measure(start: StartService, seconds: float) -> dict[str, Any]:
    """Measure submissions on CONNECTIONS connections, and RACING posts of one body at once."""
    measured = MeasuredFigure()
    with start() as service:
        model = model_of(service)
        asyncio.run(send(service, model, CONNECTIONS, WARM_S))
        figures = asyncio.run(send(service, model, CONNECTIONS, seconds))
        raced = asyncio.run(race(service, model))
    rate, p99 = figures["accepted_per_s"], figures["latency_ms"]["p99"]
    measured.figures = {**figures, "race": raced}
    shown = f"{rate:.0f}, of which {figures['predicted_per_s']:.0f} are predicted; {figures['refused']} refused; "
    shown += f"the sender took {figures['sender_cores']:.2f} cores"
    ok = rate >= RATE and not figures["refused"]
    measured.holds(f"{CONNECTIONS} connections: submissions a second", f"at least {RATE}", shown, ok)
    measured.below(f"{CONNECTIONS} connections: P99", P99_MS, p99, "ms")
    one = raced["accepted"] == RACING and raced["ids"] == raced["jobs"] == 1
    shown = f"{raced['jobs']}; {raced['accepted']} of {RACING} answered, with {raced['ids']} id"
    measured.holds(f"{RACING} posts under one Idempotency-Key: jobs", "1", shown, one)
    return measured.as_run()


ONE_PROCESS, TWO_PROCESSES = {"WEB_CONCURRENCY": "1"}, {"WEB_CONCURRENCY": "2"}
# The service has one web process, which is what `magnus up` starts, and then two.
SUBMISSIONS = Experiment(
    {"long": 40.0, "short": 5.0},
    {
        "one web process": partial(measured_service, "--workers", "0", environment=ONE_PROCESS),
        "two web processes": partial(measured_service, "--workers", "0", environment=TWO_PROCESSES),
    },
    measure,
)
FULL_RATE, FULL_P99_MS = 200, 50
PACED_WORKERS = 4


def measure_full(requests: tuple[int, int], seconds: float) -> dict[str, Any]:
    """Measure two web processes on a database that holds these numbers of ended and of waiting requests."""
    measured, (ended, waiting) = MeasuredFigure(), requests
    with measured_service(paced=PACED_WORKERS, environment=TWO_PROCESSES) as service:
        model = model_of(service)
        if ended:
            # The short form has a hundredth of the requests.
            share = 1 if seconds > SHORT_S else 100
            fill_service(service.facts.database_url, model, ended // share, waiting // share)
        sent = posts(model, service.key)
        asyncio.run(submit_at_rate(service.url, sent, FULL_RATE, WARM_S, seed=3))
        measured.figures = figures = asyncio.run(submit_at_rate(service.url, sent, FULL_RATE, seconds, seed=1))
    p99, more = figures["latency_ms"]["p99"], f" ({figures['failed']} refused)"
    measured.below(f"P99 of {FULL_RATE} submissions a second", FULL_P99_MS, p99, "ms", more)
    return measured.as_run()


SHORT_S = 3.0
FULL = Experiment(
    {"long": 30.0, "short": SHORT_S},
    {"an empty database": (0, 0), "a million requests ended, 100,000 waiting": (1_000_000, 100_000)},
    measure_full,
)

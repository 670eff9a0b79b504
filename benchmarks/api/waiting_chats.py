"""Measures the latency of submissions while chats wait, streams run and idle connections are open, all at once.

The answers come from paced workers, which compute nothing. For one load they come from two of our own workers, which
compute on the web process's cores, as on a laptop. A latency counts from the instant at which a submission was due.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.api.measured_service import (
    MeasuredFigure,
    MeasuredService,
    StartService,
    measured_service,
    model_of,
)
from benchmarks.api.submissions import connect, post, posts, status_of, submit_at_rate
from benchmarks.experiment import Experiment
from benchmarks.harness import Json
from inference.toy.toy_applications import APPLICATIONS

P99_MS = 100
RATE = 50.0  # submissions a second
PACED_WORKERS = 4  # these are enough to answer a thousand chats in a minute
SETTLE_S = 2.0  # submissions are measured this long after the held calls were sent, whose arrival also costs time
ANSWERED_WITHIN_S = 600.0


@dataclass(frozen=True)
class Load:
    """Numbers of waiting chats, streams and idle connections; `tokens` of each answer keep a call open long enough."""

    waiting: int
    streams: int
    idle: int
    tokens: int

    def __str__(self) -> str:
        others = f", {self.streams} streams, {self.idle} idle connections" if self.streams else ""
        return f"{self.waiting} waiting chats{others}"


LOADS = (Load(64, 0, 0, 400), Load(1000, 0, 0, 80), Load(1000, 500, 300, 80))
FEWER = (Load(8, 0, 0, 200), Load(20, 10, 5, 200))
WAIT = {"MAGNUS_WAIT_S": "600"}  # longer than the slowest worker of this benchmark takes


class HeldChats:
    """Sends waiting and streaming chats and counts how each ended."""

    def __init__(self, url: str, key: str, model: str, tokens: int) -> None:
        """Prepare chats whose answers have `tokens` tokens each."""
        self.ended: Counter[str] = Counter()
        self.first_text_s: list[float] = []
        self._url, self._key = url, key
        self._body = {
            "model": model,
            "messages": [
                {"role": "system", "content": APPLICATIONS["double"].instruction},
                {"role": "user", "content": "river cloud " * (tokens // 4)},
            ],
            "max_tokens": tokens,
            "metadata": {"application": "held"},
        }

    async def wait(self) -> None:
        """Send one chat and wait for its whole answer."""
        await self._hold("waiting", self._body, status_of)

    async def stream(self) -> None:
        """Send one streaming chat and read its stream to the end."""
        await self._hold("streams", self._body | {"stream": True}, self._read_stream)

    async def _hold(
        self, kind: str, body: Mapping[str, Any], read: Callable[[asyncio.StreamReader], Awaitable[object]]
    ) -> None:
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                reader, writer = await connect(self._url)
                writer.write(post("/v1/chat/completions", self._key, body))
                self.ended[f"{kind}: {await read(reader)}"] += 1
                writer.close()
        except (OSError, EOFError) as error:  # time-outs are OSErrors; EOFErrors are answers that break off
            self.ended[f"{kind}: {type(error).__name__}"] += 1

    async def _read_stream(self, reader: asyncio.StreamReader) -> int | str:
        """Read a stream, one event a line, to its end; returns its HTTP status, or `cut off` if its end is missing."""
        started, status, whole, first = perf_counter(), await reader.readline(), False, True
        async for line in reader:
            if first and b'"content":' in line and b'"content":""' not in line:
                self.first_text_s.append(perf_counter() - started)
                first = False
            whole = line == b"data: [DONE]\n"
            if whole:
                break
        return int(status[9:12]) if whole else "cut off"


async def hold_and_submit(service: MeasuredService, model: str, load: Load, seconds: float) -> Json:
    """Submit requests while chats of this load are open; returns the submissions' figures, and how the chats ended."""
    held = HeldChats(service.url, service.key, model, load.tokens)
    idle_ones = [await connect(service.url) for _ in range(load.idle)]
    opened_at = perf_counter()
    tasks = [asyncio.create_task(held.wait()) for _ in range(load.waiting)]
    tasks += [asyncio.create_task(held.stream()) for _ in range(load.streams)]
    await asyncio.sleep(SETTLE_S)
    open_before = sum(not task.done() for task in tasks)
    submissions = await submit_at_rate(service.url, posts(model, service.key), RATE, seconds, seed=2)
    open_after, memory = sum(not task.done() for task in tasks), service.memory_mib()
    await asyncio.gather(*tasks)
    answered_s = perf_counter() - opened_at
    for _, writer in idle_ones:
        writer.close()
    first = sorted(held.first_text_s)
    return submissions | {
        "open_before": open_before,
        "open_after": open_after,
        "memory_mib": memory,
        "held_ended": dict(held.ended),
        "held_answered_s": answered_s,
        "first_text_s": {"p50": first[len(first) // 2], "max": first[-1]} if first else None,
    }


def measure(served: tuple[StartService, slice], loads: tuple[Load, ...]) -> Json:
    """Measure one service under the loads that `served` selects."""
    measured, seconds, (start, some) = MeasuredFigure(), 3.0 if loads[0] in FEWER else 10.0, served
    with start() as service:
        alone = measured.figures["alone"] = _alone(service, seconds)
        for load in loads[some]:
            _judge(measured, service, load, seconds, alone)
    return measured.as_run()


def _alone(service: MeasuredService, seconds: float) -> Json:
    requests = posts(model_of(service), service.key)
    asyncio.run(submit_at_rate(service.url, requests, RATE, 2.0, seed=3))  # fills query plans and caches
    submissions = asyncio.run(submit_at_rate(service.url, requests, RATE, seconds, seed=1))
    return submissions | {"memory_mib": service.memory_mib()}


def _judge(measured: MeasuredFigure, service: MeasuredService, load: Load, seconds: float, alone: Json) -> None:
    beside = asyncio.run(hold_and_submit(service, model_of(service), load, seconds))
    name, calls = str(load), load.waiting + load.streams
    measured.figures[name] = beside
    good = sum(beside["held_ended"].get(kind, 0) for kind in ("waiting: 200", "streams: 200"))
    others = {kind: count for kind, count in beside["held_ended"].items() if not kind.endswith(" 200")}
    shown = f"{good} in {beside['held_answered_s']:.0f} s, {beside['open_after']} of them after the last submission"
    measured.holds(f"{name}: answered", f"{calls}", shown + (f"; {others}" if others else ""), good == calls)
    before, memory = alone["latency_ms"]["p99"], beside["memory_mib"]
    more = f" ({before:.3g} alone, {beside['failed']} refused, web process {memory:.0f} MiB)"
    measured.below(f"{name}: P99 of submissions", P99_MS, beside["latency_ms"]["p99"], "ms", more)


WAITING = Experiment(
    {"long": LOADS, "short": FEWER},
    {
        "paced workers": (partial(measured_service, paced=PACED_WORKERS, environment=WAIT), slice(None)),
        "two workers of ours": (partial(measured_service, "--workers", "2", environment=WAIT), slice(1, 2)),
    },
    measure,
)

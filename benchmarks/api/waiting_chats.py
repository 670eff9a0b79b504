"""Chats that wait, all at once, and what a submission takes meanwhile: 64, 1,000, and 1,000 beside streams.

Their answers come from workers at a GPU's pace that compute nothing. One row has two workers of ours, which compute on
the very cores that the web process runs on: what a laptop gives.
"""

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.accept import figures as submission_figures
from benchmarks.accept import submit_all
from benchmarks.api.measured_figure import MeasuredFigure
from benchmarks.api.measured_service import MeasuredService, measured_service
from benchmarks.waiting import hold_and_submit, memory_mib
from cli.api_client import Client

P99_MS = 100
RATE = 50.0  # submissions a second, as in `benchmarks.waiting`
PACED_WORKERS = 4  # answer a thousand chats in a minute


@dataclass(frozen=True)
class Load:
    """Chats that wait, streams, idle connections; tokens of an answer, so that all are open while is submitted."""

    waiting: int
    streams: int
    idle: int
    tokens: int

    def __str__(self) -> str:
        others = f", {self.streams} streams, {self.idle} idle connections" if self.streams else ""
        return f"{self.waiting} waiting chats{others}"


LOADS = (Load(64, 0, 0, 400), Load(1000, 0, 0, 80), Load(1000, 500, 300, 80))
FEWER = (Load(8, 0, 0, 200), Load(20, 10, 5, 200))
WAIT = {"MAGNUS_WAIT_S": "600"}  # so that no call ends because the workers of this benchmark are slow


def measure(short: bool) -> MeasuredFigure:
    """Each load on the same service, then 1,000 chats on our own workers."""
    measured, seconds = MeasuredFigure(), 3.0 if short else 10.0
    with measured_service(paced=PACED_WORKERS, environment=WAIT) as service:
        alone = _alone(service, seconds)
        measured.figures["alone"] = alone
        for load in FEWER if short else LOADS:
            _judge(measured, service, load, seconds, "paced workers", alone)
    with measured_service("--workers", "2", environment=WAIT) as service:
        _alone(service, seconds)
        _judge(measured, service, FEWER[0] if short else LOADS[1], seconds, "two workers of ours", alone)
    return measured


def _alone(service: MeasuredService, seconds: float) -> dict[str, Any]:
    asyncio.run(submit_all(service.url, service.key, RATE, 2.0, seed=3))  # opens connections, fills caches
    latencies, failures = asyncio.run(submit_all(service.url, service.key, RATE, seconds, seed=1))
    memory = memory_mib(urlsplit(service.url).port or 80)
    return submission_figures(latencies, failures, RATE, seconds) | {"memory_mib": memory}


def _judge(
    measured: MeasuredFigure,
    service: MeasuredService,
    load: Load,
    seconds: float,
    workers: str,
    alone: dict[str, Any],
) -> None:
    with Client(service.url, service.key) as client:
        model = client.model()
    held = (load.waiting, load.streams, load.idle)
    beside = asyncio.run(hold_and_submit(service.url, service.key, model, *held, RATE, seconds, load.tokens))
    name, calls = f"{load}, {workers}", load.waiting + load.streams
    measured.figures[name] = beside
    good = sum(beside["held_ended"].get(kind, 0) for kind in ("waiting: 200", "streams: 200"))
    others = {kind: count for kind, count in beside["held_ended"].items() if not kind.endswith(" 200")}
    shown = f"{good} in {beside['held_answered_s']:.0f} s, {beside['open_after']} of them after the last submission"
    measured.holds(f"{name}: answered", f"{calls}", shown + (f"; {others}" if others else ""), good == calls)
    before, memory = alone["latency_ms"]["p99"], beside["memory_mib"]
    more = f" ({before:.3g} alone, {beside['failed']} refused, web process {memory:.0f} MiB)"
    measured.below(f"{name}: P99 of submissions", P99_MS, beside["latency_ms"]["p99"], "ms", more)

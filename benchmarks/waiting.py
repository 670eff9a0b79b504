"""Measures how fast one web process accepts requests while many calls wait, stream or do nothing on their connections.

    python -m benchmarks.waiting [--url URL --api-key KEY | --state-dir DIR] [--waiting 1000] [--streams 500]
        [--idle 300] [--rate 50] [--seconds 10] [--json FILE]

Submissions are timed alone, then while the others are held open, then alone again; all count from their due instants.
The held calls are chats with long answers, of a policy and a model that take their time: what is measured is the web
process, and how its latency changes. At the end all held calls must have been answered.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import click
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.accept import figures, submit_all
from benchmarks.api.plain_calls import connect, post, status_of
from cli.api_client import Client
from cli.hosting.service_files import api_address
from cli.options import service_options, settings_with
from inference.toy.toy_applications import APPLICATIONS

HELD_TOKENS = 40  # of each held answer: enough of them for many seconds of a worker's time
SETTLE_S = 2.0  # what is left of the burst of their own submissions then belongs to the measurement
ANSWERED_WITHIN_S = 600.0


class Held:
    """Calls that wait and streams, and what became of them."""

    def __init__(self, url: str, key: str, model: str, tokens: int) -> None:
        """`tokens` of each answer."""
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
        """One chat that waits."""
        await self._hold("waiting", self._body, status_of)

    async def stream(self) -> None:
        """One chat that streams."""
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
        except (OSError, EOFError) as error:  # among them a time-out, and a connection that ends within an answer
            self.ended[f"{kind}: {type(error).__name__}"] += 1

    async def _read_stream(self, reader: asyncio.StreamReader) -> int | str:
        """The status, if the stream came to its end; each event is a line within a chunk."""
        started, status, whole, first = perf_counter(), await reader.readline(), False, True
        async for line in reader:
            if first and b'"content":' in line and b'"content":""' not in line:
                self.first_text_s.append(perf_counter() - started)
                first = False
            whole = line == b"data: [DONE]\n"
            if whole:
                break
        return int(status[9:12]) if whole else "cut off"


async def hold_and_submit(
    url: str,
    key: str,
    model: str,
    waiting: int,
    streams: int,
    idle: int,
    rate: float,
    seconds: float,
    tokens: int = HELD_TOKENS,
) -> dict[str, Any]:
    """The submissions' figures while so many are held, and how the held ones ended."""
    held, idle_ones = Held(url, key, model, tokens), [await connect(url) for _ in range(idle)]
    opened_at = perf_counter()
    tasks = [asyncio.create_task(held.wait()) for _ in range(waiting)]
    tasks += [asyncio.create_task(held.stream()) for _ in range(streams)]
    await asyncio.sleep(SETTLE_S)
    open_before = sum(not task.done() for task in tasks)
    latencies, failures = await submit_all(url, key, rate, seconds, seed=2)
    open_after, memory = sum(not task.done() for task in tasks), memory_mib(urlsplit(url).port or 80)
    await asyncio.gather(*tasks)
    answered_s = perf_counter() - opened_at
    for _, writer in idle_ones:
        writer.close()
    first = sorted(held.first_text_s)
    return figures(latencies, failures, rate, seconds) | {
        "open_before": open_before,
        "open_after": open_after,
        "memory_mib": memory,
        "held_ended": dict(held.ended),
        "held_answered_s": answered_s,
        "first_text_s": {"p50": first[len(first) // 2], "max": first[-1]} if first else None,
    }


def memory_mib(port: int) -> float:
    """What the processes of this host use that listen on this port."""
    pids = {one.pid for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == port and one.pid}
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20


@click.command()
@click.option("--waiting", default=1000, show_default=True, help="Chats that wait")
@click.option("--streams", default=500, show_default=True, help="Chats that stream")
@click.option("--idle", default=300, show_default=True, help="Connections on which nothing is sent")
@click.option("--rate", default=50.0, show_default=True, help="Submissions a second")
@click.option("--seconds", default=10.0, show_default=True, help="How long they are sent, each time")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here")
@service_options
def main(
    waiting: int,
    streams: int,
    idle: int,
    rate: float,
    seconds: float,
    json_file: Path | None,
    url: str | None,
    api_key: str | None,
    state_dir: Path | None,
) -> None:
    """Measure submissions alone, beside many waiting calls, and alone again."""
    url, key = api_address(settings_with(url=url, api_key=api_key, state_dir=state_dir))
    with Client(url, key) as client:
        model = client.model()

    def alone() -> dict[str, Any]:
        return figures(*asyncio.run(submit_all(url, key, rate, seconds, seed=1)), rate, seconds)

    asyncio.run(submit_all(url, key, rate, 2.0, seed=3))  # opens connections and fills caches on both sides
    result: dict[str, Any] = {"waiting": waiting, "streams": streams, "idle": idle}
    result["alone"] = alone()
    result["alone"]["memory_mib"] = memory_mib(urlsplit(url).port or 80)
    result["beside"] = asyncio.run(hold_and_submit(url, key, model, waiting, streams, idle, rate, seconds))
    result["alone_again"] = alone()
    table = Table("submissions", "accepted", "failed", "mean ms", "P50", "P95", "P99", "max")
    for name in ("alone", "beside", "alone_again"):
        row = result[name]
        latency = [f"{value:.1f}" for value in row["latency_ms"].values()]
        table.add_row(name.replace("_", " "), str(row["accepted"]), str(row["failed"]), *latency)
    Console().print(table)
    beside = result["beside"]
    Console().print(
        f"held open: {beside['open_before']} before, {beside['open_after']} after the submissions; "
        f"ended: {beside['held_ended']} within {beside['held_answered_s']:.1f} s; first text: {beside['first_text_s']}"
    )
    Console().print(
        f"memory of the web process: {result['alone']['memory_mib']} MiB alone, {beside['memory_mib']} beside"
    )
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Measures how fast a running service accepts requests: Poisson arrivals over HTTP, latencies from due instants.

    python -m benchmarks.accept --url http://127.0.0.1:8000 --api-key KEY --rate 200 --seconds 30 [--json FILE]

Open loop: a slow answer does not delay the next request, and a request that is sent late counts from its due instant.
The figures must be the same with a stopped or frozen broker, because accepting a request does not use the broker.
"""

import asyncio
import json
import random
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

# Any words do: the answers are not read.
WORDS = ["red", "green", "blue", "one", "two", "three", "small", "big", "old", "new", "house", "tree", "river", "bird"]


def body(model: str, rng: random.Random) -> dict[str, Any]:
    """A request of 5 to 40 words."""
    words = " ".join(rng.choices(WORDS, k=rng.randint(5, 40)))
    return {"model": model, "instructions": "Repeat the words.", "input": words, "background": True}


async def submit_all(url: str, key: str, rate: float, seconds: float, seed: int) -> tuple[list[float], list[str]]:
    """Latencies of accepted requests in seconds, and status codes or error names of the others."""
    rng = random.Random(seed)
    latencies: list[float] = []
    failures: list[str] = []
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=30.0) as client:
        model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        start, due = perf_counter(), 0.0

        async def submit(due: float) -> None:
            try:
                answer = await client.post("/v1/responses", json=body(model, rng))
            except httpx.HTTPError as error:
                failures.append(type(error).__name__)
                return
            if answer.status_code == 200:
                latencies.append(perf_counter() - start - due)
            else:
                failures.append(str(answer.status_code))

        async with asyncio.TaskGroup() as group:
            while (due := due + rng.expovariate(rate)) < seconds:
                await asyncio.sleep(max(0.0, start + due - perf_counter()))
                group.create_task(submit(due))
    return latencies, failures


def figures(latencies: list[float], failures: list[str], rate: float, seconds: float) -> dict[str, Any]:
    """The figures of the JSON, latencies in milliseconds."""
    ms = np.array(latencies) * 1000
    p50, p95, p99 = np.percentile(ms, [50, 95, 99])
    return {
        "rate": rate,
        "seconds": seconds,
        "accepted": len(latencies),
        "failed": len(failures),
        "failures": sorted(set(failures)),
        "latency_ms": {"mean": ms.mean(), "p50": p50, "p95": p95, "p99": p99, "max": ms.max()},
    }


@click.command()
@click.option("--url", required=True, help="Address of a running service")
@click.option("--api-key", required=True)
@click.option("--rate", default=200.0, show_default=True, help="Requests a second")
@click.option("--seconds", default=30.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here")
def main(url: str, api_key: str, rate: float, seconds: float, seed: int, json_file: Path | None) -> None:
    """Measure how fast requests are accepted."""
    asyncio.run(submit_all(url, api_key, rate, 2.0, seed + 1))  # opens connections and fills caches on both sides
    result = figures(*asyncio.run(submit_all(url, api_key, rate, seconds, seed)), rate, seconds)
    table = Table("rate / s", "accepted", "failed", "mean ms", "P50", "P95", "P99", "max")
    latency = [f"{value:.1f}" for value in result["latency_ms"].values()]
    table.add_row(f"{rate:g}", str(result["accepted"]), str(result["failed"]), *latency)
    Console().print(table)
    if result["failures"]:
        Console().print(f"not accepted: {', '.join(result['failures'])}")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

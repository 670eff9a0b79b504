"""Sends each chat at its instant, without waiting for earlier answers, and times the answers by the client's clock.

The same client speaks to an engine's server and to Magnus: both have `/v1/chat/completions`, which waits.
"""

import asyncio
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import httpx

from benchmarks.harness import in_thread, percentile, spread
from benchmarks.live.fresh_service import ServiceOptions
from benchmarks.outside_engines.server_processes import ServerTerms, running_engine
from cli.api_client import Json
from cli.demo.demo_workload import DemoArrival
from inference.local.kv.kv_budget import kv_budget_bytes
from inference.local.loading.model_loading import load_model
from inference.model_directory.model_weights import count_parameters, cpu_dtype
from inference.remote.server_load import ServerLoad, load_from_metrics
from settings import BUNDLED_MODEL

OK = 200
NO_ANSWER = 0  # the status of a request whose connection broke
CONNECT_WITHIN_S = 30.0  # any value above the pauses of a busy machine works
SAMPLE_S = 0.25  # seconds between two samples; a server answers a few requests a second


class LoadSampler:
    """Samples a server's queue, preemptions and memory until the context ends; a figure without samples is None."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)
        self._samples: list[ServerLoad] = []
        self._sampling = in_thread(self._run)

    def __enter__(self) -> Self:
        self._sampling.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._sampling.__exit__(None, None, None)
        self._client.close()

    def figures(self) -> dict[str, float | int | None]:
        """Return figures of all samples: waiting and running rows, preemptions, the share of KV memory in use."""
        waiting = sorted(float(load.waiting) for load in self._samples if load.waiting is not None)
        running = [load.running for load in self._samples if load.running is not None]
        preemptions = [load.preemptions for load in self._samples if load.preemptions is not None]
        kv_use = [load.kv_use for load in self._samples if load.kv_use is not None]
        return {
            "engine_waiting_p95": percentile(waiting, 0.95),
            "engine_running_mean": round(statistics.mean(running), 2) if running else None,
            "preemptions": preemptions[-1] - preemptions[0] if preemptions else None,
            "kv_use_mean": round(statistics.mean(kv_use), 4) if kv_use else None,
        }

    def _run(self, ended: threading.Event) -> None:
        while True:
            last = ended.is_set()
            with suppress(httpx.HTTPError):  # a server may be too busy to answer
                self._samples.append(load_from_metrics(self._client.get("/metrics").text))
            if last:
                return
            ended.wait(SAMPLE_S)


@dataclass(frozen=True)
class Target:
    """The address to which chats are sent, the model's name there, and a key if the address needs one."""

    url: str
    model: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """The answer to one request; instants are seconds since the arrivals began."""

    due_s: float
    done_s: float
    status: int
    text: str = ""
    tokens: int = 0
    predicted_tokens: int | None = None  # the predicted length, which only Magnus reports

    @property
    def response_s(self) -> float:
        """Return the seconds from the instant at which the request was due until its complete answer."""
        return self.done_s - self.due_s


def replay(
    target: Target,
    arrivals: Sequence[DemoArrival],
    limit: int,
    cap: int | None = None,
    priorities: Sequence[int | None] | None = None,
) -> list[TimedAnswer]:
    """Send each request at its instant and wait for all answers; returns them in the order of the arrivals.

    At most `cap` requests are at the server at once; the others wait here, first come, first served. `priorities` go
    into the server's own field, where lower numbers go first.
    """
    replay = _replay(target, arrivals, limit, cap, priorities or [None] * len(arrivals))
    with ThreadPoolExecutor(1) as thread:  # the caller's thread may have an event loop
        return thread.submit(asyncio.run, replay).result()


def figures(answers: Sequence[TimedAnswer]) -> dict[str, Any]:
    """Return the figures of one run; `failed_with` counts failed requests by HTTP status, NO_ANSWER among them."""
    good = [answer for answer in answers if answer.status == OK]
    last = max((answer.done_s for answer in good), default=0.0)
    return {
        "completed": len(good),
        "failed": len(answers) - len(good),
        "failed_with": dict(Counter(str(answer.status) for answer in answers if answer.status != OK)),
        "tokens": sum(answer.tokens for answer in good),
        "requests_per_s": round(len(good) / last, 4) if last else None,
        "response_s": spread([answer.response_s for answer in good], digits=3),
    }


async def _replay(
    target: Target, arrivals: Sequence[DemoArrival], limit: int, cap: int | None, priorities: Sequence[int | None]
) -> list[TimedAnswer]:
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    slots = nullcontext() if cap is None else asyncio.Semaphore(cap)  # wakes waiting requests in order of arrival
    began = time.monotonic()
    timeout = httpx.Timeout(CONNECT_WITHIN_S, read=None, pool=None)
    # Each request gets a connection of its own, because llama.cpp closes idle connections without notice.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)

    async with httpx.AsyncClient(base_url=target.url, headers=headers, timeout=timeout, limits=limits) as client:

        async def one(arrival: DemoArrival, priority: int | None) -> TimedAnswer:
            await asyncio.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
            async with slots:
                try:
                    answer = await client.post("/v1/chat/completions", json=_body(target, arrival, limit, priority))
                except httpx.HTTPError:
                    return TimedAnswer(arrival.at_s, time.monotonic() - began, NO_ANSWER)
            return _timed(answer, arrival.at_s, time.monotonic() - began)

        return list(await asyncio.gather(*map(one, arrivals, priorities)))


def _body(target: Target, arrival: DemoArrival, limit: int, priority: int | None) -> dict[str, Any]:
    request = arrival.request
    turns = [("system", request.instruction), ("user", request.input)]
    body = {
        "model": target.model,
        "messages": [{"role": role, "content": content} for role, content in turns if content],
        "max_tokens": limit,
        "temperature": 0,
    }
    if target.key is not None:  # the target is Magnus, which gets the application as in all benchmarks
        body["metadata"] = {"application": request.application}
    return body if priority is None else body | {"priority": priority}


def _timed(answer: httpx.Response, due_s: float, done_s: float) -> TimedAnswer:
    if not answer.is_success:
        return TimedAnswer(due_s, done_s, answer.status_code)
    body = answer.json()
    return TimedAnswer(
        due_s,
        done_s,
        answer.status_code,
        body["choices"][0]["message"]["content"] or "",
        body["usage"]["completion_tokens"],
        body.get("magnus", {}).get("predicted_tokens"),
    )


DIRECT_SERVERS = ("vllm",)
MAX_ROWS = 128  # the most rows in a step of the server; not tuned
ANSWER_TOKENS = 1024  # the service's default of Gmax


def run_direct(options: ServiceOptions, warm: list[DemoArrival], arrivals: list[DemoArrival]) -> Json:
    """Start vLLM, replay the `warm` requests and then the arrivals; returns figures by the client's clock."""
    model, limit = Path(options.model or BUNDLED_MODEL), options.max_output_tokens or ANSWER_TOKENS
    terms = server_terms(model, options)
    with (
        tempfile.TemporaryDirectory(prefix="magnus-direct-") as logs,
        running_engine("vllm", terms, Path(logs)) as server,
    ):
        target = Target(server.url, server.model)
        replay(target, warm, limit)
        run = figures(replay(target, arrivals, limit))
    seconds = run["completed"] / run["requests_per_s"]
    return run | {
        "requests": len(arrivals),
        "valid_tokens_per_s": round(run["tokens"] / seconds, 1),
        "server_kv_tokens": terms.kv_tokens,
    }


def server_terms(model: Path, options: ServiceOptions) -> ServerTerms:
    """Describe a server with the data type that our workers choose and the sum of their memory."""
    loaded, (dtype, _) = load_model(str(model)), cpu_dtype(count_parameters(model) or 0)
    workers_bytes = options.workers * kv_budget_bytes(options.kv_budget, loaded.device)
    terms = ServerTerms(model, max_rows=MAX_ROWS, dtype=dtype)
    blocks = workers_bytes // loaded.delta_bytes // terms.block_tokens
    return replace(terms, kv_tokens=blocks * terms.block_tokens)

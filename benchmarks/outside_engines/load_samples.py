"""Looks at a server's own figures while it serves: its queue, its preemptions, how full its memory is."""

import statistics
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx

from cli.run_report import percentile
from inference.remote.server_load import ServerLoad, load_from_metrics

SAMPLE_S = 0.25  # between two looks; the queue of a server changes with each answer, some a second


class LoadSampler:
    """Samples until the context ends; what a server does not tell stays None."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)
        self._samples: list[ServerLoad] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load samples")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def figures(self) -> dict[str, float | int | None]:
        """Over all samples: the waiting rows, preemptions, the share of memory in use."""
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

    def _run(self) -> None:
        while True:
            last = self._stopping.is_set()
            with suppress(httpx.HTTPError):  # too busy to say
                self._samples.append(load_from_metrics(self._client.get("/metrics").text))
            if last:
                return
            self._stopping.wait(SAMPLE_S)

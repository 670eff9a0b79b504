"""One live run: the requests from which a service learns first, and the measured requests."""

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Json
from benchmarks.live.live_figures import ServiceMonitor
from benchmarks.service_start import client_of_service, submitted
from cli.demo.demo_workload import DemoArrival, send_all
from cli.demo.run_report import WHOLE_OR_CUT_OFF, summary
from cli.hosting.service_files import RunningService

# Seconds between two samples of the service. A shorter interval would take CPU from the service on a small machine.
# Not tuned.
POLL_S = 0.5
# Seconds after the last answer to the first requests. By then a predictor fitted to the answers is in service: the
# trainer checks every 5 s.
SETTLE_S = 10.0
FEWEST_CORRELATED = 10  # the correlation of lengths is by chance if an application has fewer requests


def answer_first(service: RunningService, state_dir: Path, arrivals: list[DemoArrival]) -> None:
    """Send requests that the service learns from, and wait until it has answered and learned."""
    pause = threading.Event()
    with client_of_service(state_dir) as client:
        submitted(client, arrivals)
    with ServiceMonitor(service, state_dir) as monitor:
        while monitor.open_requests():
            pause.wait(POLL_S)
    pause.wait(SETTLE_S)


def await_estimator(service: RunningService, state_dir: Path, arrivals: list[DemoArrival], most_s: float) -> None:
    """Send requests over and over until a serving time estimator is in service, for at most `most_s`."""
    ends_at, pause, enough = time.monotonic() + most_s, threading.Event(), threading.Event()
    with ServiceMonitor(service, state_dir) as monitor, client_of_service(state_dir) as client:
        with ThreadPoolExecutor(1) as pool:
            while not enough.is_set():
                sending = pool.submit(send_all, client, arrivals, enough, lambda *_: None)
                while not enough.is_set() and (not sending.done() or monitor.open_requests()):
                    if time.monotonic() > ends_at or monitor.learned()["serving_time_estimators"]:
                        enough.set()
                    pause.wait(POLL_S)
        while monitor.open_requests():
            pause.wait(POLL_S)


def measure(service: RunningService, state_dir: Path, arrivals: list[DemoArrival]) -> Json:
    """Replay the arrivals, wait for every answer, and gather the figures."""
    with client_of_service(state_dir) as client, ServiceMonitor(service, state_dir) as monitor:
        since, pause = client.stats()["now"], threading.Event()
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(submitted, client, arrivals)
            while not sending.done() or monitor.open_requests():
                monitor.sample()
                pause.wait(POLL_S)
            sent = sending.result()
        while monitor.open_requests():
            monitor.sample()
            pause.wait(POLL_S)
        monitor.stop_clock()
        responses = [response for response in client.responses() if response["id"] in sent]
        last = max(response["completed_at"] or 0.0 for response in responses)
        stats = client.stats(since, last + 0.001)
        figures: Json = summary(responses, stats, len(arrivals), WHOLE_OR_CUT_OFF)
        figures |= {"pad_tokens": stats["pad_tokens"], "invalid_tokens": stats["invalid_tokens"]}
        figures |= {
            "requests_per_s_to_last_arrival": to_last_arrival(responses),
            "length_correlation": length_correlation(responses),
            "threads": monitor.threads(),
        }
        return figures | monitor.figures(since) | {"since": since}


def to_last_arrival(responses: list[dict[str, Any]]) -> float | None:
    """Return the answers a second between the first and the last arrival, so that the run's end does not count."""
    arrived = [response["magnus"]["arrived_at"] for response in responses]
    first, last = min(arrived), max(arrived)
    ended = sum(response["completed_at"] is not None and response["completed_at"] <= last for response in responses)
    return round(ended / (last - first), 4) if last > first else None


def length_correlation(responses: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return Pearson's coefficient of prompt and answer length, of all requests and of each application (Table I)."""
    lengths: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for response in responses:
        if usage := response["usage"]:
            pair = (usage["input_tokens"], usage["output_tokens"])
            lengths["all"].append(pair)
            lengths[response["magnus"]["application"]].append(pair)
    return {name: _pearson(pairs) for name, pairs in lengths.items() if len(pairs) >= FEWEST_CORRELATED}


def _pearson(pairs: list[tuple[int, int]]) -> float | None:
    prompts, answers = np.array(pairs, np.float64).T
    if not prompts.std() or not answers.std():
        return None
    return round(float(np.corrcoef(prompts, answers)[0, 1]), 3)

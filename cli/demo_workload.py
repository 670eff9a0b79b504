"""The demo's requests and their arrival times: a Poisson process, open loop, so that a slow service gets no fewer."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from cli.api_client import Client
from inference.toy.toy_applications import ToyRequest, toy_requests

SENDERS = 16  # calls in flight at once; more would only compete with the service for the same cores. Not tuned
TRAINING_SEED_OFFSET = 1_000_003  # added to the workload's seed to draw other requests; any value but 0 does


@dataclass(frozen=True)
class DemoArrival:
    """A request and the seconds after the start at which it is sent."""

    request: ToyRequest
    at_s: float


def poisson_arrivals(requests: int, rate: float, seed: int, median_words: float = 10.0) -> list[DemoArrival]:
    """Toy requests whose gaps are exponentially distributed, `rate` requests a second on average."""
    generator = random.Random(seed)
    at_s, arrivals = 0.0, []
    for request in toy_requests(requests, seed, median_words=median_words):
        at_s += generator.expovariate(rate)
        arrivals.append(DemoArrival(request, at_s))
    return arrivals


def training_examples(examples: int, arrivals: list[DemoArrival], seed: int) -> Iterator[dict[str, str]]:
    """Toy requests with their answers, as `magnus train` reads them, without any that `arrivals` will submit."""
    submitted = {(arrival.request.instruction, arrival.request.input) for arrival in arrivals}
    for toy in toy_requests(examples, seed + TRAINING_SEED_OFFSET):
        if (toy.instruction, toy.input) not in submitted:
            yield {
                "application": toy.application,
                "instructions": toy.instruction,
                "input": toy.input,
                "output": toy.output,
            }


def send_all(
    client: Client, arrivals: list[DemoArrival], stopping: threading.Event, sent: Callable[[str], None]
) -> list[Future[None]]:
    """Submit each request at its time, from a thread pool, and call `sent` with its id; returns when all have ended."""
    model = client.model()
    started_at = time.monotonic()

    def submit(request: ToyRequest) -> None:
        body = {"model": model, "instructions": request.instruction, "input": request.input}
        sent(client.create({**body, "metadata": {"application": request.application}})["id"])

    with ThreadPoolExecutor(SENDERS, thread_name_prefix="send") as pool:
        futures: list[Future[None]] = []
        for arrival in arrivals:
            if stopping.wait(max(0.0, started_at + arrival.at_s - time.monotonic())):
                break
            futures.append(pool.submit(submit, arrival.request))
    return futures

"""The demo's requests and when they arrive: a Poisson process, open loop, so a slow service is not spared."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from cli.api_client import Client
from inference.toy.toy_applications import ToyRequest, toy_requests

SENDERS = 16  # requests on their way at once; more would only compete with the service for the same cores
TRAINING_SEED = 1_000_003  # added to the workload's seed, so that other requests are drawn


@dataclass(frozen=True)
class DemoArrival:
    """A request and the seconds after the start at which it is sent."""

    request: ToyRequest
    at_s: float


def poisson(requests: int, rate: float, seed: int, median_words: float = 10.0) -> list[DemoArrival]:
    """Toy requests with exponential gaps, `rate` a second on average."""
    chance = random.Random(seed)
    at_s, arrivals = 0.0, []
    for request in toy_requests(requests, seed, median_words=median_words):
        at_s += chance.expovariate(rate)
        arrivals.append(DemoArrival(request, at_s))
    return arrivals


def training_examples(examples: int, arrivals: list[DemoArrival], seed: int) -> Iterator[dict[str, str]]:
    """Other toy requests with their answers, as `magnus train` reads them; none that will be submitted."""
    submitted = {(arrival.request.instruction, arrival.request.input) for arrival in arrivals}
    for toy in toy_requests(examples, seed + TRAINING_SEED):
        if (toy.instruction, toy.input) not in submitted:
            yield {
                "application": toy.application,
                "instructions": toy.instruction,
                "input": toy.input,
                "output": toy.output,
            }


def send(
    client: Client, arrivals: list[DemoArrival], stopping: threading.Event, sent: Callable[[str], None]
) -> list[Future[None]]:
    """Send each request at its time, from a thread pool; `sent` gets each id. Returns once the last was sent off."""
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

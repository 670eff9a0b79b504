"""The demo's requests and their arrival times: a Poisson process, open loop, so that a slow service gets no fewer."""

import random
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice, zip_longest
from pathlib import Path

from cli.api_client import Client, Json
from inference.toy.toy_applications import ToyRequest, toy_requests

REAL_INSTRUCTIONS = Path(__file__).with_name("demo_instructions.toml")
SENDERS = 16  # calls in flight at once; more would only compete with the service for the same cores. Not tuned
TRAINING_SEED_OFFSET = 1_000_003  # added to the workload's seed to draw other requests; any value but 0 does


@dataclass(frozen=True)
class RealRequest:
    """A request to a real language model; the limit keeps the demo short, without one the service's holds."""

    application: str
    instruction: str
    input: str
    max_output_tokens: int | None


DemoRequest = ToyRequest | RealRequest


@dataclass(frozen=True)
class DemoArrival:
    """A request and the seconds after the start at which it is sent."""

    request: DemoRequest
    at_s: float


def poisson_arrivals(requests: int, rate: float, seed: int, median_words: float = 10.0) -> list[DemoArrival]:
    """Toy requests whose gaps are exponentially distributed, `rate` requests a second on average."""
    generator = random.Random(seed)
    at_s, arrivals = 0.0, []
    for request in toy_requests(requests, seed, median_words=median_words):
        at_s += generator.expovariate(rate)
        arrivals.append(DemoArrival(request, at_s))
    return arrivals


def real_requests() -> list[RealRequest]:
    """All real instructions, the applications taken in turn."""
    applications = tomllib.loads(REAL_INSTRUCTIONS.read_text(encoding="utf-8"))["application"]
    by_application = [
        [RealRequest(app["name"], app["instructions"], text, app["max_output_tokens"]) for text in app["inputs"]]
        for app in applications
    ]
    return [request for turn in zip_longest(*by_application) for request in turn if request is not None]


def real_arrivals(requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Real instructions in random order, from the first again once all are used; gaps as in `poisson_arrivals`."""
    generator = random.Random(seed)
    drawn = real_requests()
    generator.shuffle(drawn)
    at_s, arrivals = 0.0, []
    for request in islice(cycle(drawn), requests):
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
    client: Client, arrivals: list[DemoArrival], stopping: threading.Event, sent: Callable[[str, DemoRequest], None]
) -> list[Future[None]]:
    """Submit each request at its time, from a thread pool; `sent` gets its id and it. Returns when all have ended."""
    model = client.model()
    started_at = time.monotonic()

    def submit(request: DemoRequest) -> None:
        body: Json = {"model": model, "input": request.input, "metadata": {"application": request.application}}
        if request.instruction:
            body["instructions"] = request.instruction
        if isinstance(request, RealRequest) and request.max_output_tokens is not None:
            body["max_output_tokens"] = request.max_output_tokens
        sent(client.create(body)["id"], request)

    with ThreadPoolExecutor(SENDERS, thread_name_prefix="send") as pool:
        futures: list[Future[None]] = []
        for arrival in arrivals:
            if stopping.wait(max(0.0, started_at + arrival.at_s - time.monotonic())):
                break
            futures.append(pool.submit(submit, arrival.request))
    return futures

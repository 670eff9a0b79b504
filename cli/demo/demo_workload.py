"""The demo's requests and their arrival times: a Poisson process, which does not slow down for a slow service."""

import random
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, cycle, islice, zip_longest
from pathlib import Path

from cli.api_client import Client, Json
from inference.toy.toy_applications import ToyRequest, toy_requests

REAL_INSTRUCTIONS = Path(__file__).with_name("demo_instructions.toml")
SENDERS = 16  # calls in flight at once; more would compete with the service for the same cores; not tuned
TRAINING_EXAMPLES = 1500  # more would teach the predictor more and delay the demo's start; not tuned
TRAINING_SEED_OFFSET = 1_000_003  # added to the workload's seed to draw other requests; any value but 0 works


@dataclass(frozen=True)
class RealRequest:
    """A request to a real language model; its limit keeps the demo short, None means the service's limit."""

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
    """Return toy requests, `rate` a second on average, with exponentially distributed gaps."""
    return spaced(toy_requests(requests, seed, median_words=median_words), rate, random.Random(seed))


def real_requests() -> list[RealRequest]:
    """Return all real instructions, one of each application in turn."""
    applications = tomllib.loads(REAL_INSTRUCTIONS.read_text(encoding="utf-8"))["application"]
    by_application = [
        [RealRequest(app["name"], app["instructions"], text, app["max_output_tokens"]) for text in app["inputs"]]
        for app in applications
    ]
    return [request for turn in zip_longest(*by_application) for request in turn if request is not None]


def real_arrivals(
    requests: int, rate: float, seed: int, drawn: Sequence[RealRequest] | None = None
) -> list[DemoArrival]:
    """Return `drawn`, or all real instructions, shuffled and repeated, with gaps as in `poisson_arrivals`."""
    generator = random.Random(seed)
    drawn = list(real_requests() if drawn is None else drawn)
    generator.shuffle(drawn)
    return spaced(islice(cycle(drawn), requests), rate, generator)


def spaced(requests: Iterable[DemoRequest], rate: float, generator: random.Random) -> list[DemoArrival]:
    """Return these requests with exponentially distributed gaps, `rate` a second on average."""
    requests = list(requests)
    times = accumulate(generator.expovariate(rate) for _ in requests)
    return [DemoArrival(request, at_s) for request, at_s in zip(requests, times, strict=True)]


def training_examples(
    examples: int, arrivals: list[DemoArrival], seed: int, median_words: float = 10.0
) -> Iterator[dict[str, str]]:
    """Yield toy requests with their answers for `magnus train`, except requests that are among `arrivals`."""
    submitted = {(arrival.request.instruction, arrival.request.input) for arrival in arrivals}
    for toy in toy_requests(examples, seed + TRAINING_SEED_OFFSET, median_words=median_words):
        if (toy.instruction, toy.input) not in submitted:
            texts = {"instructions": toy.instruction, "input": toy.input, "output": toy.output}
            yield {"application": toy.application, **texts}


def send_all(
    client: Client,
    arrivals: list[DemoArrival],
    stopping: threading.Event,
    sent: Callable[[str, DemoRequest], None],
    create: Callable[[Json], Json] | None = None,
) -> list[Future[None]]:
    """Submit each request at its time from a thread pool and call `sent` with its id; return when all calls ended.

    `create` submits a body, by default `client.create`.
    """
    model, create = client.model(), create or client.create
    started_at = time.monotonic()

    def submit(request: DemoRequest) -> None:
        if stopping.is_set():  # a slow service leaves submissions behind, which would still be sent after Ctrl-C
            return
        body: Json = {"model": model, "input": request.input, "metadata": {"application": request.application}}
        if request.instruction:
            body["instructions"] = request.instruction
        if isinstance(request, RealRequest) and request.max_output_tokens is not None:
            body["max_output_tokens"] = request.max_output_tokens
        sent(create(body)["id"], request)

    with ThreadPoolExecutor(SENDERS, thread_name_prefix="send") as pool:
        futures: list[Future[None]] = []
        for arrival in arrivals:
            if stopping.wait(max(0.0, started_at + arrival.at_s - time.monotonic())):
                break
            futures.append(pool.submit(submit, arrival.request))
    return futures

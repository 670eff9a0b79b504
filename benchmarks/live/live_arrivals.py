"""The requests that the live benchmark sends, with their instants: toy or real ones, a file of requests, or a trace."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path

from cli.demo_workload import DemoArrival, RealRequest, poisson_arrivals, real_arrivals
from inference.toy.toy_applications import APPLICATIONS, MAX_WORDS, ToyRequest, draw_request

# Words of a toy input. The demo's have 10; with so few, HTTP and the database are half of the work on a small machine,
# whatever the policy.
MEDIAN_WORDS = 30.0


def arrivals_of(workload: str, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Open-loop arrivals of about `rate` a second; a trace keeps its bursts and is sped up to that rate."""
    if workload == "toy":
        return poisson_arrivals(requests, rate, seed, MEDIAN_WORDS)
    if workload == "instructions":
        return _instructions(requests, rate, seed)
    path = Path(workload)
    return _from_trace(path, requests, rate, seed) if path.suffix == ".csv" else _from_file(path, requests, rate, seed)


def _instructions(requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """The demo's real instructions without their limits, so that answers end where the model ends them."""
    return [
        replace(arrival, request=replace(arrival.request, max_output_tokens=None))
        if isinstance(arrival.request, RealRequest)
        else arrival
        for arrival in real_arrivals(requests, rate, seed)
    ]


def _from_file(path: Path, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Requests drawn from a .jsonl with `application`, `instruction` and `input`, at Poisson instants."""
    rng = random.Random(seed)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    at_s, arrivals = 0.0, []
    for line in rng.choices(lines, k=requests):
        at_s += rng.expovariate(rate)
        request = ToyRequest(line["application"], line["instruction"], line["input"], line.get("output", ""))
        arrivals.append(DemoArrival(request, at_s))
    return arrivals


def _from_trace(path: Path, requests: int, rate: float, seed: int) -> list[DemoArrival]:
    """Toy requests at the instants of a trace; the longest answer of the trace becomes the longest toy input."""
    rng = random.Random(seed)
    with path.open(encoding="utf-8") as file:
        rows = [(float(row["arrival_s"]), int(row["output_tokens"])) for row in csv.DictReader(file)][:requests]
    first, last = rows[0][0], rows[-1][0]
    speed = len(rows) / rate / max(last - first, 1e-9)
    longest = max(tokens for _, tokens in rows)
    return [
        DemoArrival(
            draw_request(rng.choice(tuple(APPLICATIONS)), max(2, round(MAX_WORDS * tokens / longest)), rng),
            (at_s - first) * speed,
        )
        for at_s, tokens in rows
    ]

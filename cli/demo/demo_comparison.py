"""`magnus demo --compare`: the same requests under each policy in turn, each on a new service, and one table."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from cli.api_client import Client, Json
from cli.demo.demo_run import run_workload, send_and_wait
from cli.demo.demo_service import DemoService, own_service
from cli.demo.demo_workload import (
    TRAINING_EXAMPLES,
    DemoArrival,
    DemoRequest,
    poisson_arrivals,
    real_arrivals,
    real_requests,
    training_examples,
)
from cli.demo.run_report import WHOLE, WHOLE_OR_CUT_OFF, shown
from cli.hosting.state_lock import emptied

# The load of the bundled model in docs/results/live.md: over twice what `vs` serves on two cores, so that there is a
# queue to order, and a KV cache of six rows of Eq. (1), about as many as on the paper's GPUs. There `vs`, `magnus` and
# `fusion` took 13, 8 and 7 s for these requests; with fewer requests the last, smaller batches would weigh more.
REQUESTS, RATE, MEDIAN_WORDS, KV_BUDGET = 1000, 180.0, 30.0, "40MiB"
BAR_CHARACTERS = 32  # length of the bar of the highest throughput: the table then fits into 120 characters


def compare_toy(
    console: Console, policies: Sequence[str], directory: Path, requests: int | None, rate: float | None, seed: int
) -> Json:
    """Compare with toy requests; each predictor first learns from other requests of the same applications."""
    arrivals = poisson_arrivals(requests or REQUESTS, rate or RATE, seed, MEDIAN_WORDS)
    service = DemoService(("--kv-budget", KV_BUDGET), tuple(training_examples(TRAINING_EXAMPLES, arrivals, seed)))
    figures = _run_each(console, policies, directory, service, arrivals, WHOLE)
    return {"terms": _terms("toy requests", rate or RATE, service, arrivals), "policies": figures}


def compare_real(
    console: Console,
    policies: Sequence[str],
    directory: Path,
    options: tuple[str, ...],
    model: str,
    requests: int | None,
    rate: float,
    seed: int,
) -> Json:
    """Compare with half of the real instructions; predictors first learn from the model's answers to the other half."""
    instructions = real_requests()
    random.Random(seed).shuffle(instructions)
    half = len(instructions) // 2
    console.rule("answers to learn from", align="left")
    teachers = real_arrivals(half, rate, seed, instructions[:half])
    opened = own_service(console, emptied(directory / "answers"), None, DemoService(options, model=model))
    with opened as address, Client(*address) as client:
        answered = send_and_wait(console, client, teachers, client.stats()["now"])
    examples = tuple(_example(*one) for one in answered if one[1]["usage"] and one[1]["usage"]["output_tokens"])
    service = DemoService(options, examples, model)
    arrivals = real_arrivals(requests or half, rate, seed, instructions[half:])
    figures = _run_each(console, policies, directory, service, arrivals, WHOLE_OR_CUT_OFF)
    return {"terms": _terms("real instructions", rate, service, arrivals), "policies": figures}


def _example(request: DemoRequest, response: Json) -> Mapping[str, str | int]:
    texts = {"instructions": request.instruction, "input": request.input}
    return {"application": request.application, **texts, "output_tokens": int(response["usage"]["output_tokens"])}


def _run_each(
    console: Console,
    policies: Sequence[str],
    directory: Path,
    service: DemoService,
    arrivals: list[DemoArrival],
    answered: frozenset[str],
) -> dict[str, Json]:
    """Run each policy on a service of its own, so that none learns from another's run; return figures by policy."""
    figures: dict[str, Json] = {}
    for name in policies:
        console.rule(f"{name}, {len(figures) + 1} of {len(policies)}", align="left")
        opened = own_service(console, emptied(directory / name), name, service)
        with opened as address, Client(*address) as client:
            figures[name] = run_workload(console, client, arrivals, answered)
    return figures


def _terms(kind: str, rate: float, service: DemoService, arrivals: list[DemoArrival]) -> Json:
    options = " ".join(service.options)
    return {
        "kind": kind,
        "requests": len(arrivals),
        "rate": rate,
        "examples": len(service.examples),
        "options": options,
    }


def print_comparison(console: Console, figures: Json) -> None:
    """Print a row for each policy with a bar of its throughput, and the terms of the comparison."""
    policies: Mapping[str, Json] = figures["policies"]
    first, most = next(iter(policies)), max(one["requests_per_s"] or 0.0 for one in policies.values())
    base = policies[first]["requests_per_s"]
    made = Table(title="The same requests under each policy", title_justify="left")
    made.add_column("policy")
    for title in ("requests/s", f"over {first}", "mean s", "P99 s", "valid tokens/s", "valid", "rows"):
        made.add_column(title, justify="right")
    made.add_column("requests/s", width=BAR_CHARACTERS)
    for name, one in policies.items():
        per_s, times = one["requests_per_s"], one["response_s"]
        made.add_row(
            name,
            shown(per_s, ".1f"),
            shown(per_s / base if per_s and base else None, ".2f"),
            shown(times["mean"], ".2f"),
            shown(times["p99"], ".2f"),
            shown(one["valid_tokens_per_s"], ".0f"),
            shown(one["valid_token_share"], ".0%"),
            shown(one["mean_batch_size"], ".1f"),
            Bar(most or 1.0, 0.0, per_s or 0.0, color="green"),
        )
    console.print(made)
    terms = figures["terms"]
    console.print(
        f"{terms['requests']} {terms['kind']} at the same instants for each policy, {terms['rate']:g} a second in a "
        f"Poisson process. Each policy has a new service ({terms['options']}) whose length predictor learned from "
        f"{terms['examples']} other requests. Seconds count from the first arrival to the last answer. One run each."
    )

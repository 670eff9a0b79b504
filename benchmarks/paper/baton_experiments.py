"""BATON, Tables 1 and 2, Fig. 5 to 7: the completion time of a set of queries in batches of a fixed size, llama2-7b.

Table 1's machine (A6000) is among the published ones. Table 2's machine (4090) takes 55 ms an iteration for any batch:
the paper prints 161.77 s for 15 batches of 2, and 40.45 s for 3 batches of 10.

With PD prompts are prefilled in groups of similar length, without padding. Without PD BATON prefills a joiner in the
running batch, and pads each row of the batch to the joiner's prompt.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.paper.simulation_runs import Row, SimulationRun, Workloads, note
from benchmarks.published_costs import LLAMA2_7B_A6000, Machine
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policies.baton import Baton
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Policy
from scheduling.request import Request
from scheduling.simulation.simulator import Arrival
from scheduling.simulation.trace import Trace

POINTS = 61  # instants from the first arrival to the last answer; more instants would draw the same curves


def curves_over_time(trace: Trace, arrivals: list[Arrival]) -> dict[str, Any]:
    """Return completed queries, generated tokens and cached tokens at evenly spaced instants, as columns of a row.

    A trace has no instants of tokens, so a row's tokens are spread evenly over its time. A row's cache grows until the
    batch ends in a run-to-completion batch, and until the row ends in a continuous one.
    """
    at = np.linspace(trace.first_arrival_at, trace.first_arrival_at + trace.makespan_s, POINTS)
    prompts = {arrival.request.id: arrival.request.length for arrival in arrivals}
    held = {
        request_id: (batch.ended_at, batch.iterations)
        for batch in trace.batches
        if not batch.joined
        for request_id in batch.ids
    }
    completed, generated, cached = np.zeros(POINTS), np.zeros(POINTS), np.zeros(POINTS)
    for answer in trace.answers.values():
        done = np.clip((at - answer.started_at) / max(1e-9, answer.finished_at - answer.started_at), 0, 1)
        completed += at >= answer.finished_at
        generated += answer.generated * done
        until, iterations = held.get(answer.id, (answer.finished_at, answer.generated))
        grown = iterations * np.clip((at - answer.started_at) / max(1e-9, until - answer.started_at), 0, 1)
        cached += (prompts[answer.id] + grown) * ((at >= answer.started_at) & (at < until))
    return {
        "instants_s": at.round(2).tolist(),
        "completed": completed.astype(int).tolist(),
        "generated_tokens": generated.round().astype(int).tolist(),
        "cached_tokens": cached.round().astype(int).tolist(),
    }


TABLE_1, TABLE_2 = "baton table 1", "baton table 2"
DELTA_BYTES = 524_288  # llama2-7b has 32 layers with 4,096 values for keys and 4,096 for values, of two bytes each
# The cache gets 10 GB, about what 13.5 GB of weights leave of the GPU's 24 GB.
RTX_4090 = KvMemory(10_000_000_000, DELTA_BYTES)
PREFILL_TOKEN_S = LLAMA2_7B_A6000.curves.prefill[0]
LONG, SHORT = 4000, (50, 500)  # tokens of Table 1's queries with batches of 8; with batches of 4 they are doubled
SHORT_ONLY = (40, 266)  # tokens of Table 2's queries, which have a few dozen to 200 words
PRINTED_1 = {
    4: {"benchmark": 21_901.0, "pd": 21_781.0, "baton": 20_549.0, "baton-pd": 11_771.0},
    8: {"benchmark": 6_619.0, "pd": 6_577.0, "baton": 3_424.0, "baton-pd": 2_654.0},
}
PRINTED_2 = {2: (161.77, 83.43), 4: (92.68, 49.61), 6: (61.70, 37.25), 8: (50.07, 31.08), 10: (40.45, 30.99)}


def _mixed_queries(factor: int, workloads: Workloads) -> list[Arrival]:
    """Make 120 queries at once: long prompt and short answer, short and long, short and short, in the ratio 1:1:2."""
    rng = np.random.default_rng(1)
    kinds = rng.permutation([0] * 30 + [1] * 30 + [2] * 60).tolist()
    short = rng.integers(*SHORT, size=(120, 2)).tolist()
    long = np.rint(rng.uniform(0.95, 1.0, 120) * LONG).astype(np.int64).tolist()
    arrivals = []
    for number, (kind, (prompt, answer)) in enumerate(zip(kinds, short, strict=True)):
        prompt, answer = (long[number] if kind == 0 else prompt), (long[number] if kind == 1 else answer)
        arrivals.append(_query(number, factor * prompt, factor * answer))
    return arrivals


def _short_queries(workloads: Workloads) -> list[Arrival]:
    """Make 30 queries at once, with short prompts and short answers."""
    lengths = np.random.default_rng(1).integers(*SHORT_ONLY, size=(30, 2)).tolist()
    return [_query(number, prompt, answer) for number, (prompt, answer) in enumerate(lengths)]


def _query(number: int, prompt: int, answer: int) -> Arrival:
    return Arrival(Request(f"{number:03d}", 0.0, prompt, 8192, answer, answer), answer)


def _machine(memory: KvMemory, decode: tuple[float, float, float, float], prefill_token_s: float) -> Machine:
    return Machine(ServingCurves((prefill_token_s, 0.0, 0.0, decode[3]), decode), memory)


def runs(predictor: str, quick: bool) -> list[SimulationRun]:
    """Return the simulations of both tables; none of these policies uses predictions."""
    chosen: list[SimulationRun] = []

    def add(
        table: str,
        name: str,
        make: Callable[[], Policy],
        queries: Callable[[Workloads], list[Arrival]],
        machine: Machine,
        batch: int,
        printed: float,
    ) -> None:
        notes = {"batch": batch, "printed": printed}
        figures = curves_over_time if table == TABLE_2 else None
        chosen.append(
            SimulationRun(
                table, name, make, queries, machine, 1, workload=f"batches of {batch}", notes=notes, figures=figures
            )
        )

    for batch, printed in PRINTED_1.items():
        queries = partial(_mixed_queries, 8 // batch)
        padded = _padded_share(queries({}), batch)
        for name, make, prefill_token_s in (
            ("benchmark", partial(Vanilla, 8192, 8192, batch), PREFILL_TOKEN_S),
            ("pd", partial(Vanilla, 8192, 8192, batch), PREFILL_TOKEN_S * padded),
            ("baton", partial(Baton, batch, 1.0, 1.0), PREFILL_TOKEN_S * batch),
            ("baton-pd", partial(Baton, batch, 1.0, 1.0), PREFILL_TOKEN_S),
        ):
            machine = _machine(LLAMA2_7B_A6000.memory, LLAMA2_7B_A6000.curves.decode, prefill_token_s)
            add(TABLE_1, name, make, queries, machine, batch, printed[name])
    machine = _machine(RTX_4090, (0.0, 0.0, 0.0, 0.055), PREFILL_TOKEN_S)
    for batch, (benchmark, baton) in PRINTED_2.items():
        add(TABLE_2, "benchmark", partial(Vanilla, 512, 512, batch), _short_queries, machine, batch, benchmark)
        add(TABLE_2, "baton-pd", partial(Baton, batch, 1.0, 1.0), _short_queries, machine, batch, baton)
    return chosen


def _padded_share(queries: Sequence[Arrival], batch: int) -> float:
    """Return the share of the prompts' own tokens in prompts that are padded to the longest one of their batch."""
    prompts = [query.request.length for query in queries]
    batches = [prompts[first : first + batch] for first in range(0, len(prompts), batch)]
    return sum(prompts) / sum(len(one) * max(one) for one in batches)


def compare_with_paper(rows: Sequence[Row]) -> None:
    """Compare completion times, and the times of the other policies divided by that of BATON with PD."""
    for row in rows:
        if not row["experiment"].startswith("baton"):
            continue
        printed = row["printed"]
        note(row, "completion time, s", row["seconds"], printed, printed)
        for other in rows:
            same = all(other[key] == row[key] for key in ("experiment", "workload"))
            if same and row["policy"] == "baton-pd" and other["policy"] != "baton-pd":
                ratio = other["printed"] / printed
                note(row, f"times as fast as {other['policy']}", other["seconds"] / row["seconds"], ratio, ratio)

"""SCLS, Fig. 12 to 15, 17, 18, 20 and 22: LLaMA2-13B on A100s, served in slices.

The paper's CodeFuse trace is not public. It comes from an assistant for code: nearly all answers are below 512 tokens
(Fig. 6), most end within three slices (Fig. 14), and eight workers are busy at 20 requests a second (Fig. 22). So the
lengths here are those of `hard`, chat and code comments: 95 % are below 512, 87 % end within three slices. The lengths
of Azure's conversation trace are simulated only at the paper's main rate, because their long prompts would overload the
workers at any rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.paper.round_robin import DealtInTurn, SlicesInTurn
from benchmarks.paper.simulation_runs import Row, SimulationRun, column, compare, note, workload_arrivals
from benchmarks.published_costs import LLAMA2_13B_A100_DS, LLAMA2_13B_A100_HF
from scheduling.policies.ccb import ConservativeContinuous
from scheduling.policies.scls import DEEPSPEED_RULE, MemoryRule, SliceLevel
from scheduling.policies.vanilla import Vanilla
from scheduling.policy import Policy
from scheduling.simulation.simulator import Arrival
from scheduling.simulation.trace import Trace

# RATE (requests a second) and SLICE (tokens) are the paper's main rate and slice length (Fig. 15, 18, 22).
WORKLOAD, OTHER_WORKLOAD, RATE, SLICE = "hard", "conversation", 20.0, 128
RATES = (16.0, 18.0, 20.0, 22.0, 24.0)
SECONDS = 600.0  # requests arrive for these seconds, as in the paper (5.1)
GAMMA_S = {"hf": 6.0, "ds": 3.0}
FIXED = {"hf": 16, "ds": 12}
RULE = {"hf": MemoryRule(0.9), "ds": DEEPSPEED_RULE}
MACHINE = {"hf": LLAMA2_13B_A100_HF, "ds": LLAMA2_13B_A100_DS}
OVERALL, ABLATION, SLICES, WORKERS = "scls fig 12, 13, 17", "scls fig 15", "scls fig 18", "scls fig 22"
THROUGHPUT = column("requests_per_s")
MEAN, TAIL = column("response_s", "mean"), column("response_s", "p95")


def _policy(name: str, engine: str, slice_tokens: int = SLICE) -> Callable[[], Policy]:
    rule, gamma_s = RULE[engine], GAMMA_S[engine]
    capped = replace(rule, cap=FIXED[engine])
    slices: dict[str, Callable[[], Policy]] = {
        "sls": partial(DealtInTurn, partial(Vanilla, 1024, 1024, FIXED[engine])),
        "so": partial(DealtInTurn, partial(Vanilla, 1024, 1024, FIXED[engine], slice_tokens)),
        "pm": partial(SlicesInTurn, slice_tokens, capped, 0.0, gamma_s),
        "ab": partial(SlicesInTurn, slice_tokens, rule, 0.0, gamma_s),
        "lb": partial(SliceLevel, slice_tokens, rule, 0.0, gamma_s),
        "scls": partial(SliceLevel, slice_tokens, rule, 0.5, gamma_s),
        "ils": partial(DealtInTurn, partial(ConservativeContinuous, 1024, 1024, FIXED[engine])),
    }
    return slices[name]


def runs(predictor: str, quick: bool) -> list[SimulationRun]:
    """Return all simulations; no policy of SCLS uses predictions."""
    rates, seconds = ((RATE,), 60.0) if quick else (RATES, SECONDS)
    chosen: list[SimulationRun] = []

    def add(
        experiment: str,
        name: str,
        engine: str,
        rate: float = RATE,
        workload: str = WORKLOAD,
        workers: int = 8,
        slice_tokens: int = SLICE,
    ) -> None:
        chosen.append(
            SimulationRun(
                experiment,
                name,
                _policy(name, engine, slice_tokens),
                workload_arrivals(workload, "true", rate, seconds),
                MACHINE[engine],
                workers,
                rate,
                f"{workload}, {engine}",
                engine={"out_of_memory_s": 10.0},
                notes={"slice_tokens": slice_tokens},
                figures=partial(_slices, slice_tokens) if name == "scls" else None,
            )
        )

    for engine in MACHINE:
        for name in ("sls", "scls", *(["ils"] if engine == "ds" else [])):
            for rate in rates:
                add(OVERALL, name, engine, rate)
            add(OVERALL, name, engine, workload=OTHER_WORKLOAD)
        for name in ("sls", "so", "pm", "ab", "lb", "scls"):
            add(ABLATION, name, engine)
        for slice_tokens in (32, 64, 128, 256, 512, 1024):
            add(SLICES, "scls", engine, slice_tokens=slice_tokens)
        for workers in (1, 2, 4, 8):
            add(WORKERS, "scls", engine, workers=workers)
    return chosen


def _slices(slice_tokens: int, trace: Trace, arriving: list[Arrival]) -> Row:
    """Return the shares of requests by needed slices (Fig. 14), and of batches that ended before their slice (20)."""
    needed = np.array([answer.schedules for answer in trace.answers.values()])
    shares = {str(number): float(np.mean(needed == number)) for number in (1, 2, 3)}
    return {"slices": shares | {"more": float(np.mean(needed > 3))}, "early_returns": trace.early_returns(slice_tokens)}


def compare_with_paper(rows: Sequence[Row]) -> None:
    """Compare with the ranges of section 5.2; of the ablations the paper prints only the order."""
    for engine, base, throughput, mean, tail in (
        ("hf", "sls", (2.323, 3.158), (0.824, 0.849), (0.798, 0.810)),
        ("ds", "sls", (0.825, 1.919), (0.808, 0.911), (0.766, 0.889)),
        ("ds", "ils", (0.616, 1.710), (0.784, 0.883), (0.746, 0.858)),
    ):
        chosen = [row for row in rows if row["experiment"] == OVERALL and row["workload"].endswith(engine)]
        compare(chosen, "scls", base, "requests/s", THROUGHPUT, *throughput)
        compare(chosen, "scls", base, "mean response", MEAN, *mean, falls=True)
        compare(chosen, "scls", base, "P95 response", TAIL, *tail, falls=True)
    for row in rows:
        if row["experiment"] == OVERALL and row["policy"] == "scls" and "slices" in row:
            up_to_three = sum(row["slices"][number] for number in ("1", "2", "3"))
            note(row, "requests of at most three slices", up_to_three, 0.5, None)
            note(row, "early returns", row["early_returns"], None, 0.01)
        if row["experiment"] in (OVERALL, ABLATION) and row["policy"] != "ils":
            note(row, "load imbalance, s", row["load_imbalance_s"], None, None)
    for engine, low, high in (("hf", 1.003, 2.261), ("ds", 0.432, 0.861)):
        chosen = [row for row in rows if row["experiment"] == OVERALL and row["workload"].endswith(engine)]
        compare(chosen, "scls", "sls", "batch size", column("batch_size_mean"), low, high)

"""Our own experiment compares all policies on the same workloads, with true, real, noisy and useless predictions.

Joins are cheap. Seven ChatGLM-6B on V100s serve `mixed` and `hard`, eight LLaMA2-13B on A100s serve Azure's traces.
"""

from collections.abc import Sequence
from functools import partial

from benchmarks.inputs.simulated_workloads import Limits
from benchmarks.paper.simulation_runs import Row, SimulationRun, column, note, workload_arrivals
from benchmarks.published_costs import CHATGLM_6B_V100, LLAMA2_13B_A100_HF
from scheduling.sharing.policy_factory import PolicySettings, make_policy

EXPERIMENT = "ours"
# Requests arrive for these seconds; workloads with low rates take longer.
SECONDS = {"mixed": 300.0, "hard": 600.0, "azure_conv": 600.0, "azure_code": 600.0}
RATES = {  # light load, half of the rate that fusion can serve, most of that rate, all of it, overload
    "mixed": (8.0, 16.0, 24.0, 32.0, 48.0),
    "hard": (2.0, 4.0, 6.0, 8.0, 12.0),
    "azure_conv": (1.0, 2.0, 3.0, 4.0, 6.0),
    "azure_code": (2.0, 4.0, 6.0, 8.0, 12.0),
}
MACHINE = {
    "mixed": (CHATGLM_6B_V100, 7, Limits(1024, 1024)),
    "hard": (CHATGLM_6B_V100, 7, Limits(1024, 1024)),
    "azure_conv": (LLAMA2_13B_A100_HF, 8, Limits(4096, 1024)),
    "azure_code": (LLAMA2_13B_A100_HF, 8, Limits(4096, 1024)),
}
WITHOUT_PREDICTIONS = ("vs", "ccb", "scls", "baton")
REAL_PREDICTIONS = ("glp", "abp", "sequence")
EVERY_PREDICTOR = ("magnus", "fusion")
PREDICTORS = ("real", "noisy", "useless")


def runs(predictor: str, quick: bool) -> list[SimulationRun]:
    """Return the simulations of every policy with each workload, rate and predictor."""
    named = [(name, name, "none") for name in WITHOUT_PREDICTIONS] + [(name, name, "real") for name in REAL_PREDICTIONS]
    named += [(name, name, quality) for name in EVERY_PREDICTOR for quality in PREDICTORS]
    named += [("oracle", "fusion", "true"), ("magnus", "magnus", "true")]
    chosen: list[SimulationRun] = []
    for workload, rates in RATES.items():
        machine, workers, limits = MACHINE[workload]
        settings = PolicySettings(limits.prompt, limits.answer)
        for rate in rates[-2:] if quick else rates:
            for label, name, quality in named:
                predictions = "true" if quality == "none" else quality
                chosen.append(
                    SimulationRun(
                        EXPERIMENT,
                        label,
                        partial(make_policy, name, settings),
                        workload_arrivals(workload, predictions, rate, 40.0 if quick else SECONDS[workload], limits),
                        machine,
                        workers,
                        rate,
                        workload,
                        quality,
                        engine={"out_of_memory_s": 10.0},
                    )
                )
    return chosen


def compare_with_paper(rows: Sequence[Row]) -> None:
    """Compare each row of `fusion` with the other policies and with the target range."""
    mean, p99, most = (column("response_s", name) for name in ("mean", "p99", "max"))
    throughput = column("requests_per_s")
    for row in rows:
        if row["experiment"] != EXPERIMENT or row["policy"] != "fusion":
            continue
        same = [other for other in rows if all(other[key] == row[key] for key in ("experiment", "workload", "rate"))]
        others = [other for other in same if other["policy"] not in ("fusion", "oracle")]
        similar = [other for other in others if throughput(other) >= 0.9 * throughput(row)] or others
        oracle = next(other for other in same if other["policy"] == "oracle")
        magnus = next(o for o in same if o["policy"] == "magnus" and o["predictor"] == row["predictor"])
        served = throughput(row)
        note(row, "requests/s of the best other", served / max(map(throughput, others)), 1, None)
        note(row, "mean response of the best other", mean(row) / min(map(mean, others)), None, 1)
        note(row, "P99 of the best of similar throughput", p99(row) / min(map(p99, similar)), None, 1.2)
        note(row, "maximum of the best of similar throughput", most(row) / min(map(most, similar)), None, 1.2)
        note(row, "requests/s of magnus", served / throughput(magnus), None, None)
        note(row, "requests/s of the oracle", served / throughput(oracle), 0.9, None)

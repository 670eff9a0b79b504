"""Magnus, the case study of Fig. 6, and Fig. 10 to 13: seven ChatGLM-6B on V100s, from light load to overload."""

from collections.abc import Sequence
from functools import partial

from benchmarks.paper.simulation_runs import Row, SimulationRun, Workloads, column, compare, note, workload_arrivals
from benchmarks.published_costs import (
    CCB_JOIN_S,
    CHATGLM_6B_V100,
    CHATGLM_6B_V100_4BIT,
    QUANTIZED_ANSWER_GROWTH,
)
from scheduling.request import Request
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.simulator import Arrival

INSTANCES = 7  # the number of workers in the paper
RATES = (2.0, 4.0, 8.0, 16.0, 32.0)  # requests a second, from light load to an overload of every policy
SECONDS = 300.0  # requests arrive for these seconds; a longer run overloads more, takes longer to simulate; not tuned
HEADROOM = 3 / 7  # the memory beyond Θ as a share of Θ, which is 70 % of the memory beside the weights (IV-A)
SETTINGS = PolicySettings()
CASE_STUDY, OVERALL, ABLATION = "magnus fig 6", "magnus fig 10, 11", "magnus fig 12, 13"
VS, VSQ = "vs", "vsq"
CCB, CHEAP_CCB = f"ccb, join {CCB_JOIN_S:g} s", "ccb, cheap join"
GLP, ABP, MAGNUS = "glp", "abp", "magnus"
THROUGHPUT, VALID, TOTAL = column("requests_per_s"), column("valid_tokens_per_s"), column("total_tokens_per_s")
MEAN, TAIL = column("response_s", "mean"), column("response_s", "p95")


def case_study(workloads: Workloads) -> list[Arrival]:
    """Make 21 requests: the fourth of every seven is large, the other eighteen are small."""
    sizes = [1000 if number % 7 == 3 else 10 for number in range(21)]
    return [
        Arrival(Request(f"{number:02d}", number * 1e-3, size, 1024, size, size), size)
        for number, size in enumerate(sizes)
    ]


def runs(predictor: str, quick: bool) -> list[SimulationRun]:
    """Return the simulations of the case study and of Fig. 10 to 13, the latter with predictions of `predictor`."""
    rates, seconds = (RATES[-2:], 60.0) if quick else (RATES, SECONDS)
    vs, magnus = (partial(make_policy, name, SETTINGS) for name in ("vs", "magnus"))
    case = [
        SimulationRun(CASE_STUDY, name, make, case_study, CHATGLM_6B_V100, 1)
        for name, make in ((VS, vs), (MAGNUS, magnus))
    ]
    chosen: list[SimulationRun] = []
    for rate in rates:
        for name, make, join_s in (
            (VS, "vs", 0.0),
            (CCB, "ccb", CCB_JOIN_S),
            (CHEAP_CCB, "ccb", 0.0),
            (GLP, "glp", 0.0),
            (ABP, "abp", 0.0),
            (MAGNUS, "magnus", 0.0),
            (VSQ, "vsq", 0.0),
        ):
            machine, growth = (CHATGLM_6B_V100_4BIT, QUANTIZED_ANSWER_GROWTH) if name == VSQ else (CHATGLM_6B_V100, 1.0)
            chosen.append(
                SimulationRun(
                    ABLATION if name in (GLP, ABP) else OVERALL,
                    name,
                    partial(make_policy, make, SETTINGS),
                    workload_arrivals("mixed", predictor, rate, seconds, growth=growth),
                    machine,
                    INSTANCES,
                    rate,
                    "mixed",
                    predictor,
                    engine={"join_s": join_s, "headroom": HEADROOM, "out_of_memory_s": 10.0},
                )
            )
    return case + chosen


def compare_with_paper(rows: Sequence[Row]) -> None:
    """Compare with the 242 s and 60 s of the paper's case study, and with the ranges of IV-B and IV-C."""
    for row in rows:
        if row["experiment"] == CASE_STUDY:
            printed = {VS: 242.0, MAGNUS: 60.0}[row["policy"]]
            note(row, "total serving time, s", row["seconds"], printed, printed)
    both = [row | {"experiment": ""} for row in rows if row["experiment"] in (OVERALL, ABLATION)]
    for base, throughput, mean, tail in (
        (VS, (0.66, 2.34), (0.603, 0.897), (0.532, 0.917)),  # IV-B gives one range for all three baselines
        (VSQ, (1.93, 2.34), (0.804, 0.897), (0.769, 0.917)),
        (CCB, (0.66, 0.853), (0.603, 0.735), (0.532, 0.775)),
    ):
        compare(both, MAGNUS, base, "requests/s", THROUGHPUT, *throughput)
        compare(both, MAGNUS, base, "mean response", MEAN, *mean, falls=True)
        compare(both, MAGNUS, base, "P95 response", TAIL, *tail, falls=True)
        compare(both, MAGNUS, base, "valid tokens/s", VALID, 0.70, 2.40)
        compare(both, MAGNUS, base, "total tokens/s", TOTAL, 1.15, 4.89)
    compare(both, GLP, VS, "valid tokens/s", VALID, 0.357, 0.368)
    compare(both, ABP, GLP, "total tokens/s", TOTAL, 1.06, 1.45)
    compare(both, ABP, GLP, "requests/s", THROUGHPUT, 0.427, 0.743)
    compare(both, ABP, GLP, "mean response", MEAN, 0.464, 0.635, falls=True)
    compare(both, ABP, GLP, "P95 response", TAIL, 0.422, 0.543, falls=True)
    compare(both, MAGNUS, ABP, "mean response", MEAN, 0.051, 0.218, falls=True)
    compare(both, MAGNUS, ABP, "P95 response", TAIL, 0.137, 0.419, falls=True)

"""One simulation of a rival or of `fusion`, and the comparison of all within a cell: a workload, a load, a quality."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from benchmarks.harness import Json
from benchmarks.inputs.simulated_workloads import WorkloadLengths
from benchmarks.published_costs import CHATGLM_6B_V100
from benchmarks.rivals.iteration_level import IterationLevel
from benchmarks.rivals.published_rules import RIVALS
from benchmarks.rivals.rival_workloads import draw
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policy import Policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

POLICIES: dict[str, Callable[[], Policy]] = {"fusion": Fusion, **RIVALS}
MEMORY = replace(CHATGLM_6B_V100.memory, paged=True, block_tokens=16)  # pages, as the rivals' engines have them
# By name of the engine: joiners' prompts are computed in chunks within the running rows' iterations, whose fixed cost
# they share, as in the rivals' engines; or a join stops the running rows, as on the machine that was published.
ENGINES = {
    "chunked": EngineCosts(
        replace(CHATGLM_6B_V100.curves, prefill=(*CHATGLM_6B_V100.curves.prefill[:3], 0.0)), chunk_tokens=512
    ),
    "stalling": EngineCosts(CHATGLM_6B_V100.curves),
}
TICK_S = 0.1  # all policies decide at its multiples, about once an iteration of full workers, as the rivals' engines do
SATURATING = 1000  # with so many requests a worker, fewer or more change the rate by at most a tenth
OTHERS = 1000  # added to a seed it gives requests that the simulation does not have; any number above the seeds works
SLOWEST = 5.0  # a response within so many times the request's time alone counts as good
KINDS = ("workload", "load", "prediction")
# `fusion` should have at most so many times the best rival's figure, or at least so many times its goodput.
AIMS = {"mean": 1.02, "p50": 1.1, "p99": 1.02, "goodput": 0.98}


@dataclass(frozen=True)
class Run:
    """A simulation: a policy, requests of a workload at a multiple of saturation, predictions of a quality, a seed."""

    policy: str
    workload: str
    load: float
    prediction: str
    seed: int
    lengths: WorkloadLengths | None  # None: chats
    saturation: float  # the requests a second that vLLM's rule serves of a queue that never empties
    requests: int
    workers: int
    engine: str

    def figures(self) -> Json:
        """Simulate; return mean, median and P99 of the response times in seconds, and the goodput as a share."""
        drawn = draw(self.lengths, self.prediction, self.load * self.saturation, self.requests, self.seed)
        policy = POLICIES[self.policy]()
        if isinstance(policy, IterationLevel):  # as if it had served other requests of the workload before
            before = draw(self.lengths, self.prediction, 1.0, self.requests, self.seed + OTHERS)
            policy.seen.past = sorted(one.generation_length for one in before)
        trace = served(policy, drawn, self.workers, self.engine)
        response_s = np.array([trace.answers[one.request.id].response_s for one in drawn])
        curves = ENGINES[self.engine].curves
        alone_s = np.array([curves.serve_s(1, one.request.length, one.generation_length) for one in drawn])
        row = {key: getattr(self, key) for key in (*KINDS, "policy", "seed")}
        p50, p99 = np.percentile(response_s, [50, 99])
        return row | {
            "mean": float(response_s.mean()),
            "p50": float(p50),
            "p99": float(p99),
            "goodput": float(np.mean(response_s <= SLOWEST * alone_s)),
            "preempted": trace.preempted,
            "requests_per_s": trace.requests_per_s,
        }


def served(policy: Policy, arriving: Sequence[Arrival], workers: int, engine: str) -> Trace:
    """Simulate until each request has its answer; raise AssertionError if one has none."""
    fleet = [Instance(f"w{number}", MEMORY) for number in range(workers)]
    trace = simulate(policy, arriving, fleet, ENGINES[engine], seed=1, tick_s=TICK_S)
    if len(trace.answers) != len(arriving):
        raise AssertionError(f"{type(policy).__name__}: {len(trace.answers)} of {len(arriving)} answered")
    return trace


def saturation(lengths: WorkloadLengths | None, workers: int, engine: str) -> float:
    """Return the requests a second that vLLM's rule answers in the middle of requests that are all there at once."""
    requests = SATURATING * workers
    trace = served(RIVALS["fcfs"](), draw(lengths, "perfect", 1e6, requests, 0), workers, engine)
    ends = sorted(answer.finished_at for answer in trace.answers.values())
    first, last = round(0.2 * requests), round(0.7 * requests)
    return (last - first) / (ends[last] - ends[first])


def compared(rows: Sequence[Json]) -> Iterator[Json]:
    """Yield a row for each cell: each policy's means over the seeds, and `fusion` against the best rival."""
    for kind in dict.fromkeys(tuple(row[key] for key in KINDS) for row in rows):
        of_cell = [row for row in rows if tuple(row[key] for key in KINDS) == kind]
        figures = {
            name: {figure: mean(row[figure] for row in of_cell if row["policy"] == name) for figure in AIMS}
            for name in dict.fromkeys(row["policy"] for row in of_cell)
        }
        yield dict(zip(KINDS, kind, strict=True)) | {"policies": figures} | against_the_best(figures)


def against_the_best(figures: Json) -> Json:
    """Return, by figure, the best rival, `fusion`'s ratio to it, and whether the ratio keeps its aim."""
    found: Json = {}
    for figure, aim in AIMS.items() if "fusion" in figures else []:
        better = max if aim < 1 else min
        rivals = [name for name in figures if name != "fusion"]
        if not rivals:
            continue
        best = better(rivals, key=lambda name: figures[name][figure])
        ratio = figures["fusion"][figure] / max(figures[best][figure], 1e-9)
        found[figure] = {"best": best, "ratio": ratio, "kept": ratio >= aim if aim < 1 else ratio <= aim}
    return found

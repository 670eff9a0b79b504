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
from scheduling.policies.fusion.priority_key import FAVOURS
from scheduling.policy import Policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.policy_lab import GOOD_RATIO
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

POLICIES: dict[str, Callable[[], Policy]] = {"fusion": Fusion, **RIVALS}
MEMORY = replace(CHATGLM_6B_V100.memory, paged=True, block_tokens=16)  # pages, as the rivals' engines have them
# By name of the engine: joiners' prompts are computed in chunks within the running rows' iterations, whose fixed cost
# they share, as in the rivals' engines; or a join stops the running rows, as on the machine that was published.
V100 = CHATGLM_6B_V100.curves
ENGINES = {
    "chunked": EngineCosts(replace(V100, prefill=(*V100.prefill[:3], 0.0)), chunk_tokens=512),
    "stalling": EngineCosts(V100),
}
TICK_S = 0.1  # all policies decide at its multiples, about once an iteration of full workers, as the rivals' engines do
SATURATING = 1000  # with so many requests a V100, fewer or more change the rate by at most a tenth
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
    speeds: Sequence[float]  # of the workers; 1 is a V100
    engine: str
    favour: str = "mean"  # of `fusion`

    def figures(self) -> Json:
        """Simulate; return mean, median and P99 of the response times in seconds, and the goodput as a share."""
        drawn = draw(self.lengths, self.prediction, self.load * self.saturation, self.requests, self.seed)
        policy = Fusion(FAVOURS[self.favour]) if self.policy == "fusion" else POLICIES[self.policy]()
        if isinstance(policy, IterationLevel):  # as if it had served other requests before, those of a seed 1000 higher
            before = draw(self.lengths, self.prediction, 1.0, self.requests, self.seed + 1000)
            policy.seen.past = sorted(one.generation_length for one in before)
        trace = served(policy, drawn, self.speeds, self.engine)
        response_s = np.array([trace.answers[one.request.id].response_s for one in drawn])
        alone = ENGINES[self.engine].curves.serve_s
        alone_s = np.array([alone(1, one.request.length, one.generation_length) for one in drawn])
        values = response_s.mean(), *np.percentile(response_s, [50, 99]), np.mean(response_s <= GOOD_RATIO * alone_s)
        figures = dict(zip(AIMS, map(float, values), strict=True))
        return (
            {key: getattr(self, key) for key in (*KINDS, "policy", "seed")} | figures | {"preempted": trace.preempted}
        )


def served(policy: Policy, arriving: Sequence[Arrival], speeds: Sequence[float], engine: str) -> Trace:
    """Simulate until each request has its answer; raise AssertionError if one has none."""
    fleet = [Instance(f"w{number}", MEMORY, speed) for number, speed in enumerate(speeds)]
    trace = simulate(policy, arriving, fleet, ENGINES[engine], seed=1, tick_s=TICK_S)
    if len(trace.answers) != len(arriving):
        raise AssertionError(f"{type(policy).__name__}: {len(trace.answers)} of {len(arriving)} answered")
    return trace


def saturation(lengths: WorkloadLengths | None, speeds: Sequence[float], engine: str) -> float:
    """Return the requests a second that vLLM's rule answers in the middle of requests that are all there at once."""
    requests = round(SATURATING * sum(speeds))
    trace = served(RIVALS["fcfs"](), draw(lengths, "perfect", 1e6, requests, 0), speeds, engine)
    ends = sorted(answer.finished_at for answer in trace.answers.values())
    return 0.5 * requests / (ends[round(0.7 * requests)] - ends[round(0.2 * requests)])


def compared(rows: Sequence[Json]) -> Iterator[Json]:
    """Yield a row for each cell: the policies' means over the seeds, by figure the best rival and `fusion`'s ratio."""
    for kind in dict.fromkeys(tuple(row[key] for key in KINDS) for row in rows):
        of_cell = [row for row in rows if tuple(row[key] for key in KINDS) == kind]
        policies = {
            name: {figure: mean(row[figure] for row in of_cell if row["policy"] == name) for figure in AIMS}
            for name in dict.fromkeys(row["policy"] for row in of_cell)
        }
        cell: Json = {**dict(zip(KINDS, kind, strict=True)), "policies": policies}
        rivals = [name for name in policies if name != "fusion"]
        for figure, aim in AIMS.items() if rivals and "fusion" in policies else []:
            best = (max if aim < 1 else min)(rivals, key=lambda name: policies[name][figure])
            ratio = policies["fusion"][figure] / max(policies[best][figure], 1e-9)
            cell[figure] = {"best": best, "ratio": ratio, "kept": ratio >= aim if aim < 1 else ratio <= aim}
        yield cell

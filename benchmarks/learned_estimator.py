"""Measures HRRN with serving time estimators that learn in virtual time, on Magnus's machine and eight tasks.

`python -m benchmarks.learned_estimator [--data DIR] --rates 8,16,32 --json F`

Estimators: the true curves, as if nothing had to be learned; plain KNN with five neighbours, refitted as the paper has
it (errors of 2 s and 20 %, every 2 minutes); and ours, KNN over fitted curves, refitted early as well. Until the first
refit both know only `DEFAULT_CURVES`. `abp` is the same without HRRN.
"""

from pathlib import Path
from zlib import crc32

import click

from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.inputs.request_sources import TokenCounter, tokenizer_option
from benchmarks.inputs.simulated_workloads import Limits, arrivals, read_requests
from benchmarks.paper.magnus_experiments import HEADROOM, INSTANCES
from cli.option_types import CommaSeparated
from learning.retraining.refit import refit_serving_times
from learning.serving_time import KnnServingTime, ServedBatch, ServingTimes
from scheduling.costs import ServingTime
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.published_costs import CHATGLM_6B_V100
from scheduling.simulation.simulated_worker import Instance, StaticBatchDone
from scheduling.simulation.simulator import simulate

REFIT_EVERY_S = 120.0  # the paper's (III-D)
FIRST_REFIT_BATCHES = 30  # before the first early refit, as `tasks/training/refit_jobs.py` has it
JITTER = 0.05  # relative standard deviation of durations: an estimator that learned each exactly would flatter KNN
COLUMNS = ("rate", "policy", "estimator", "requests_per_s", "mean_s", "p95_s", "estimate_error", "refits")


class LearningEstimator:
    """Estimators of all workers, refitted in virtual time by the trainer's own function."""

    def __init__(self, plain: bool) -> None:
        self._plain = plain
        self._batches: list[ServedBatch] = []
        self._times: ServingTimes | None = None
        self._due_at, self._due_after = REFIT_EVERY_S, FIRST_REFIT_BATCHES
        self._since = -1.0
        self._version_of: dict[str, int] = {}
        self.refits = 0

    def learn(self, worker: str, done: StaticBatchDone, now: float) -> ServingTime | None:
        """Add the batch; return the worker's estimator if there is a newer one."""
        run = done.run
        if run.iterations and not run.out_of_memory:
            size = len(done.assignment.requests)
            seconds = now - done.started_at
            self._batches.append(ServedBatch("any", "m", size, run.length, run.iterations, seconds, now))
        early = not self._plain and len(self._batches) >= self._due_after
        if now >= self._due_at or early:
            self._refit(now)
        if self._times is None or self._version_of.get(worker) == self.refits:
            return None
        self._version_of[worker] = self.refits
        return self._times.serving_time_for("any", "m")

    def _refit(self, now: float) -> None:
        self._due_at, self._due_after = now + REFIT_EVERY_S, 2 * len(self._batches)
        candidate = refit_serving_times(
            self._times, self._batches, {}, since=self._since, now=now, published=self._plain
        )
        if candidate and candidate.publish:
            self._times, self._since = candidate.model, now
            self.refits += 1


@click.command(help=__doc__)
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Real requests.")
@click.option("--rates", type=CommaSeparated(float), default="8,16,32", show_default=True, help="Arrivals a second.")
@click.option("--seconds", default=600.0, show_default=True, help="Of arrivals.")
@tokenizer_option
@json_option
def main(data: Path | None, rates: list[float], seconds: float, tokens: TokenCounter, results: Results) -> None:
    """Simulate and print one table."""
    mixed = read_requests(data, "usin", tokens)["mixed"]
    rows: list[Json] = []
    for rate in rates:
        arriving = arrivals(mixed, "real", rate, seconds, 1, Limits())
        for policy, estimator in (("abp", "true"), ("magnus", "true"), ("magnus", "plain KNN"), ("magnus", "ours")):
            learning = LearningEstimator(plain=estimator == "plain KNN")
            known = None if estimator == "true" else KnnServingTime()
            fleet = [Instance(f"w{n}", CHATGLM_6B_V100.memory, estimated_costs=known) for n in range(INSTANCES)]
            costs = EngineCosts(CHATGLM_6B_V100.curves, headroom=HEADROOM, out_of_memory_s=10.0, jitter=JITTER)
            made = make_policy(policy, PolicySettings())
            seed = crc32(b"learned estimator")
            trace = (
                simulate(made, arriving, fleet, costs, seed)
                if estimator == "true"
                else simulate(made, arriving, fleet, costs, seed, learn=learning.learn)
            )
            errors = sorted(
                abs(one.estimated_s / (one.ended_at - one.started_at) - 1) for one in trace.batches if one.iterations
            )
            rows.append(
                {
                    "rate": rate,
                    "policy": policy,
                    "estimator": estimator,
                    "requests_per_s": round(trace.requests_per_s, 3),
                    "mean_s": round(trace.response_s.mean, 2),
                    "p95_s": round(trace.response_s.p95, 2),
                    "estimate_error": round(errors[len(errors) // 2], 3),
                    "refits": learning.refits,
                }
            )
            results.write(rows)
    print_table(rows, COLUMNS, f"HRRN by its estimator, {INSTANCES} workers, simulated")


if __name__ == "__main__":
    main()

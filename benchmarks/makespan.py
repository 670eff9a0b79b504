"""How long bulk jobs take, simulated: a job alone, and a small job behind another tenant's large one.

`python -m benchmarks.makespan --data DIR --json F --plot PICTURES`

The makespan of a job alone is compared with the better of two plain policies without classes of work: one that sees all
lines at once, and one that is fed a few at a time, the longest predicted first. DIR has requests/*.jsonl. What F has
already is not simulated again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import click
import numpy as np

from benchmarks.experiment import medians
from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.inputs.request_sources import data_option
from benchmarks.inputs.simulated_workloads import Limits, WorkloadLengths, arrivals, read_requests
from benchmarks.pictures import panels
from benchmarks.published_costs import CHATGLM_6B_V100 as MACHINE
from cli.hosting.service_access import POLICIES
from cli.option_types import CommaSeparated
from scheduling.outer_policy import OuterPolicy
from scheduling.policy import Assignment, Policy, WaitingBatch, Worker
from scheduling.request import Request
from scheduling.sharing.policy_factory import POLICIES as PLAIN
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

FED_AT_ONCE = 16  # a plain policy that is fed the longest lines first sees this many; any small number works
SMALL_AT_S, SMALL_LINES, LARGE_LINES = 5.0, 10, 1000  # the small job comes while the large one fills the worker
LIMITS = Limits()
AIM, SHARE_AIM = 1.05, 2.0  # the most times the better plain makespan, and the most times a small job's time alone
KINDS = ("workload", "predictor", "memory", "policy")
FIGURES, SHARE_FIGURES = ("bulk_s", "all_seen_s", "longest_first_s", "over_best"), ("alone_s", "behind_s", "over_alone")


class LongestFirst(OuterPolicy):
    """Feeds another policy some requests at a time, the longest predicted first."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.mode = policy, policy.mode
        self._waiting: list[Request] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._policy)

    def _inner(self) -> Iterable[Policy]:
        return (self._policy,)

    def add(self, request: Request, now: float) -> None:
        """Let a request wait; a request that was preempted goes to the policy at once."""
        if request.generated:
            self._policy.add(request, now)
        else:
            self._waiting.append(request)
            self._waiting.sort(key=lambda one: one.remaining)

    def assign(self, workers: Sequence[Worker], now: float) -> list[Assignment]:
        """Feed the policy until it keeps some requests waiting or assigns nothing; returns all its assignments."""
        assignments: list[Assignment] = []
        at_worker = {worker.name: worker for worker in workers}
        while True:
            while self._waiting and len(self._policy) < FED_AT_ONCE:
                self._policy.add(self._waiting.pop(), now)
            more = self._policy.assign(list(at_worker.values()), now)
            for one in more:
                at_worker[one.worker] = at_worker[one.worker].given(one, now)
            assignments += more
            if not more or len(self._policy):
                return assignments

    def waiting(self, now: float) -> Iterable[WaitingBatch]:
        """Return the waiting batches of the other policy."""
        return self._policy.waiting(now)


@click.command(help=__doc__)
@data_option
@click.option("--policies", type=CommaSeparated(click.Choice(POLICIES)), default="fusion,magnus,baton,scls")
@click.option("--workloads", type=CommaSeparated(str), default="mixed,hard", show_default=True)
@click.option("--predictors", type=CommaSeparated(str), default="real,useless", show_default=True)
@click.option("--memories", type=CommaSeparated(click.Choice(["rectangular", "paged"])), default="rectangular,paged")
@click.option("--seeds", type=CommaSeparated(int), default="1,2,3", show_default=True)
@click.option("--lines", default=4000, show_default=True, help="Lines of the job alone, on four workers.")
@json_option
@click.option("--plot", type=click.Path(path_type=Path, file_okay=False), help="Write a picture there.")
def main(
    data: Path | None,
    policies: list[str],
    workloads: list[str],
    predictors: list[str],
    memories: list[str],
    seeds: list[int],
    lines: int,
    results: Results,
    plot: Path | None,
) -> None:
    """Simulate, print, and write after each row."""
    lengths = read_requests(data, "usin")
    known = results.earlier() or {"alone": [], "behind": []}
    alone, behind = known["alone"], known["behind"]
    have = {tuple(row[key] for key in (*KINDS, "seed")) for row in alone}
    have_behind = {(row["memory"], row["policy"], row["seed"]) for row in behind}
    for name, memory, seed in product(policies, memories, seeds):
        if (memory, name, seed) not in have_behind:
            behind.append(behind_another(name, lengths["mixed"], memory == "paged", seed))
        for workload, predictor in product((one for one in workloads if one in lengths), predictors):
            if (workload, predictor, memory, name, seed) not in have:
                row = makespans(name, job(lengths[workload], predictor, lines, seed), memory == "paged")
                alone.append({"workload": workload, "predictor": predictor, "seed": seed} | row)
                results.write({"alone": alone, "behind": behind})
    medians_alone = of_kinds(alone, KINDS, FIGURES[-1])
    title = f"A job of {lines:,} lines alone on four workers: makespan in seconds, medians of the seeds"
    print_table(medians_alone, (*KINDS, *FIGURES, "most"), title)
    title = f"{SMALL_LINES} lines behind {LARGE_LINES:,} of another tenant on one worker: seconds to their last answer"
    medians_behind = of_kinds(behind, KINDS[2:], SHARE_FIGURES[-1])
    print_table(medians_behind, (*KINDS[2:], *SHARE_FIGURES, "most"), title)
    if plot is not None:
        draw(medians_alone, medians_behind, plot / "makespan.svg")


def of_kinds(rows: Sequence[Json], kinds: Sequence[str], ratio: str) -> list[Json]:
    """Return a row for each kind with the medians of its figures; `most` is the largest value of the figure `ratio`."""
    return [
        row | {"most": max(one[ratio] for one in rows if all(one[key] == row[key] for key in kinds))}
        for row in medians(rows, kinds)
    ]


def draw(alone: Sequence[Json], behind: Sequence[Json], path: Path) -> None:
    """Draw both ratios by policy beside their aims."""
    kinds = list(dict.fromkeys((row["workload"], row["predictor"], row["memory"]) for row in alone))
    names = list(dict.fromkeys(row["policy"] for row in alone))
    with panels(path, 1, 2, (13, 4.5)) as made:
        for number, kind in enumerate(kinds):
            ratios = [
                next((row["over_best"] for row in alone if (*kind, name) == tuple(row[key] for key in KINDS)), np.nan)
                for name in names
            ]
            places = np.arange(len(names)) + (number - (len(kinds) - 1) / 2) / (len(kinds) + 1)
            made[0][0].bar(places, ratios, 1 / (len(kinds) + 1), label=", ".join(kind))
        for number, memory in enumerate(dict.fromkeys(row["memory"] for row in behind)):
            of_memory = {row["policy"]: row["over_alone"] for row in behind if row["memory"] == memory}
            places = np.arange(len(names)) + (number - 0.5) / 3
            made[0][1].bar(places, [of_memory.get(name, np.nan) for name in names], 1 / 3, label=memory)
        titles = ("makespan of a job alone over the better plain policy", "ten lines behind 1,000 others, over alone")
        for panel, title, aim in zip(made[0], titles, (AIM, SHARE_AIM), strict=True):
            panel.axhline(aim, color="black", linestyle="--", linewidth=1, label=f"at most {aim:g} aimed at")
            panel.set(title=title, xticks=range(len(names)), xticklabels=names, ylim=(0.5, None))
            panel.legend(fontsize="x-small")


def job(
    lengths: WorkloadLengths, predictor: str, lines: int, seed: int, at: float = 0.0, tenant: str = "a"
) -> list[Arrival]:
    """Make the lines of a job, which all arrive at the instant `at`."""
    drawn = arrivals(lengths, predictor, lines, 1.0, seed, LIMITS)
    return [
        replace(
            one,
            request=replace(
                one.request,
                id=f"{tenant}{number:06}",
                arrived_at=at + number * 1e-6,
                tier="flex",
                tenant=tenant,
                job=f"job of {tenant}",
            ),
        )
        for number, one in enumerate(drawn)
    ]


def makespans(name: str, made: Sequence[Arrival], paged: bool) -> Json:
    """Return the makespan of a job alone under the policy `name` and under both plain policies."""
    settings = PolicySettings()
    bulk_s, all_seen_s, longest_first_s = (
        run(policy, made, workers=4, paged=paged).makespan_s
        for policy in (make_policy(name, settings), PLAIN[name](settings), LongestFirst(PLAIN[name](settings)))
    )
    best = min(all_seen_s, longest_first_s)
    return {
        "memory": "paged" if paged else "rectangular",
        "policy": name,
        "bulk_s": round(bulk_s, 2),
        "all_seen_s": round(all_seen_s, 2),
        "longest_first_s": round(longest_first_s, 2),
        "over_best": round(bulk_s / best, 3),
    }


def behind_another(name: str, lengths: WorkloadLengths, paged: bool, seed: int) -> Json:
    """Return the seconds that a small job takes alone and behind another tenant's large one, on one worker."""
    small = job(lengths, "real", SMALL_LINES, seed + 100, SMALL_AT_S, "b")
    large = job(lengths, "real", LARGE_LINES, seed)
    traces = [run(make_policy(name, PolicySettings()), made, 1, paged) for made in (small, [*small, *large])]
    alone_s, behind_s = (last_end(trace, "b") - SMALL_AT_S for trace in traces)
    return {
        "memory": "paged" if paged else "rectangular",
        "policy": name,
        "seed": seed,
        "alone_s": round(alone_s, 2),
        "behind_s": round(behind_s, 2),
        "over_alone": round(behind_s / alone_s, 2),
        "large_s": round(last_end(traces[1], "a"), 2),
    }


def last_end(trace: Trace, prefix: str) -> float:
    """Return when the last answer to requests with this prefix of the id ended; infinity if there is no answer."""
    ends = [answer.finished_at for answer in trace.answers.values() if answer.id.startswith(prefix)]
    return max(ends) if ends else math.inf


def run(policy: Policy, made: Sequence[Arrival], workers: int, paged: bool) -> Trace:
    """Simulate these requests on workers like a published machine."""
    memory = replace(MACHINE.memory, paged=paged)
    fleet = [Instance(f"w{n}", memory) for n in range(workers)]
    return simulate(policy, made, fleet, EngineCosts(MACHINE.curves), seed=1)


if __name__ == "__main__":
    main()

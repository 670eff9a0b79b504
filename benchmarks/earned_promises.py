"""Compares promises with earliest deadline first and with refusing by queue length: goodput, and what is earned.

`python -m benchmarks.earned_promises --loads 0.7,0.9,1.1,1.3,1.5,burst,lost --json F`

Each client needs its answer within a time of its own, 5 to 60 s (the logarithm is uniform), and pays for its tokens if
it comes by then; what was admitted and is late is credited at the same price. `promised` is `fusion` with the product's
rule: a call is refused whose chance of coming in time, by the order of the queue and the errors of earlier forecasts,
is below a half, or a fifth. `edf` serves the earliest deadline first and refuses nothing. `bounded` serves in order of
arrival and refuses while more than N requests wait, `bounded fusion` in `fusion`'s order; for both the N counts that
earns the most at each load, which no operator knows beforehand. Under all of them a waiting request is given up once
its predicted answer would be late on an idle worker. The rivals' rows join as Past-Future lets them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import click
import numpy as np

from benchmarks.harness import Json, Results, json_option, print_table
from benchmarks.kept_promises import Seller, WatchedPolicy, arrivals_of, simulated
from benchmarks.mixed.simulated_mix import BULK_LINES, LIMIT, bulk_lines, run
from benchmarks.rivals.iteration_level import IterationLevel, Rule
from benchmarks.rivals.published_rules import arrival, past_peak_fits
from cli.option_types import CommaSeparated
from scheduling.policy import Policy
from scheduling.request import Request
from scheduling.sharing.policy_factory import PolicySettings, make_policy
from scheduling.simulation.simulator import Arrival

NEEDS_S = (5.0, 60.0)
BOUNDS = (20, 40, 80, 160)
COLUMNS = {
    "load": "load",
    "admission": "admission",
    "asked": "asked",
    "admitted": "admitted:.0%",
    "in time": "in_time:.0%",
    "goodput, /s": "goodput:.2f",
    "paid, tokens/s": "paid:,.0f",
    "less credits": "earned:,.0f",
}


@dataclass(frozen=True)
class Admission:
    """A policy, and what it refuses: at `chance` by promises, from `bound` waiting requests on, or nothing."""

    name: str
    make: Callable[[], Policy]
    chance: float | None = None
    bound: int | None = None


fusion = partial(make_policy, "fusion", PolicySettings(max_output_tokens=LIMIT))
first_deadline = partial(IterationLevel, Rule(lambda row, seen: row.request.deadline_at or math.inf, past_peak_fits))
first_come = partial(IterationLevel, Rule(arrival, past_peak_fits))
ADMISSIONS = (
    Admission("promised 50 %", fusion, chance=0.5),
    Admission("promised 20 %", fusion, chance=0.2),
    Admission("edf", first_deadline),
    *(Admission("bounded", first_come, bound=bound) for bound in BOUNDS),
    *(Admission("bounded fusion", fusion, bound=bound) for bound in BOUNDS),
)


def needed(arrivals: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Give each request the time by which its client needs the answer."""
    least, most = map(math.log, NEEDS_S)
    within = np.exp(np.random.default_rng(seed + 1000).uniform(least, most, len(arrivals)))
    return [
        replace(one, request=replace(one.request, deadline_at=one.request.arrived_at + float(s)))
        for one, s in zip(arrivals, within, strict=True)
    ]


def served(
    admission: Admission, load: str, arrivals: Sequence[Arrival], warm_s: float, seconds: float, seed: int
) -> Json:
    """Simulate one admission at one load; returns its row."""
    policy = WatchedPolicy(admission.make())
    seller = Seller(policy, "fusion")

    def meet(request: Request) -> None:
        seller.sell(request)
        waiting, needs_s = len(policy.queue.waiting), (request.deadline_at or math.inf) - request.arrived_at
        refused = admission.bound is not None and waiting >= admission.bound
        if admission.chance is not None and waiting:
            likely_s = seller.likely_s(request, admission.chance)
            refused = likely_s is not None and likely_s > needs_s
        if refused:
            policy.refused.add(request.id)

    leaves_at = warm_s + seconds / 2 if load == "lost" else math.inf
    answers = simulated(policy, seller, arrivals, meet, leaves_at, seed).answers
    counted = [one.request for one in arrivals if warm_s <= one.request.arrived_at]
    admitted = [one for one in counted if one.id not in policy.refused]
    came = [one for one in admitted if one.id in answers and answers[one.id].finished_at <= (one.deadline_at or 0.0)]
    lengths = {one.request.id: one.request.length + one.generation_length for one in arrivals}
    paid, owed = (sum(lengths[one.id] for one in some) / seconds for some in (came, admitted))
    return {
        "load": load,
        "admission": admission.name,
        "bound": admission.bound,
        "asked": len(counted),
        "admitted": len(admitted) / len(counted),
        "in_time": len(came) / max(1, len(admitted)),
        "goodput": len(came) / seconds,
        "paid": paid,
        "earned": paid - (owed - paid),
    }


def compared(load: str, saturation: float, warm_s: float, seconds: float, seed: int) -> list[Json]:
    """Simulate every admission at one load; returns the best row of each name, by what is paid."""
    arrivals = needed(arrivals_of(load, saturation, warm_s, seconds, seed), seed)
    best = dict[str, Json]()
    for admission in ADMISSIONS:
        row = served(admission, load, arrivals, warm_s, seconds, seed)
        best[admission.name] = max(row, best.get(admission.name, row), key=lambda one: float(one["paid"]))
    return list(best.values())


@click.command(help=__doc__)
@click.option("--loads", type=CommaSeparated(), default="0.7,0.9,1.1,1.3,1.5,burst,lost", show_default=True)
@click.option("--seconds", default=240.0, show_default=True, help="Of arrivals at each load.")
@click.option("--warm-seconds", default=60.0, show_default=True, help="Of arrivals at each load before they count.")
@click.option("--seed", default=1, show_default=True)
@json_option
def main(loads: Sequence[str], seconds: float, warm_seconds: float, seed: int, results: Results) -> None:
    """Compare the admissions at each load."""
    saturation = BULK_LINES / run("fusion", bulk_lines(BULK_LINES, 0)).makespan_s
    rows: list[Json] = []
    for load in loads:
        rows += compared(load, saturation, warm_seconds, seconds, seed)
        results.write(rows)
    print_table(rows, COLUMNS)


if __name__ == "__main__":
    main()

"""Several models on few workers, simulated: `python -m benchmarks.model_changes [--json F]`.

When should a worker change its model? Each row is one rule at 0.9 of saturation: the requests a second that the fleet
answers if all of them wait from the beginning and no worker leaves a model before nothing of it is left. The policy of
each model is `fusion`. The plain rules let rows that run end before a change, as llama-swap and Ollama do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import click
import numpy as np

from benchmarks.harness import Json, Results, json_option, print_table, say
from benchmarks.published_costs import LLAMA2_13B_A100_DS as MACHINE
from cli.option_types import CommaSeparated
from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.policies.wrapping.isolation import IsolatingPolicy
from scheduling.policies.wrapping.model_changes import ModelChanges
from scheduling.policies.wrapping.model_fleet import ModelFleet
from scheduling.policy import Worker
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance, LoadableModel
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace

LOAD = 0.9  # of saturation
TICK_S = 0.06  # between two decisions, as of a planner whose workers all have rows
# Medians of prompts and answers in tokens, the spreads of their logarithms, and that of the predictions' errors.
PROMPT, ANSWER, SPREAD, ERROR, LONGEST = 150, 150, 0.8, 0.35, 1024
UPPER = math.exp(1.28 * ERROR)  # the 0.9 quantile of an answer, as a multiple of its prediction
MakePolicy = Callable[[], IsolatingPolicy]
COLUMNS = (
    "setting",
    "rule",
    "requests_per_s",
    "mean_s",
    "over_better_plain",
    "p99_s",
    "rarest_mean_s",
    "longest_s",
    "changes",
    "share_in_changes",
)


class PlainRule(ModelChanges):
    """Changes the model of a worker by a rule that knows no seconds; rows that run end before."""

    def __init__(self, make: MakePolicy) -> None:
        super().__init__(make)
        self._rows_return = False


class FirstCome(PlainRule):
    """Serves the model of the request that waits longest."""

    def next_model(self, worker: Worker, fleet: ModelFleet, now: float) -> str | None:
        """Return the model to change to."""
        model = oldest(worker, fleet)
        return None if model == worker.model else model


class StayUntilEmpty(PlainRule):
    """Serves a model until no request of it waits or runs."""

    def next_model(self, worker: Worker, fleet: ModelFleet, now: float) -> str | None:
        """Return the model to change to."""
        return None if fleet.has_work(worker) else oldest(worker, fleet)


class OneRound(PlainRule):
    """Serves a model until no request waits that came before the model was loaded."""

    def next_model(self, worker: Worker, fleet: ModelFleet, now: float) -> str | None:
        """Return the model to change to."""
        if fleet.oldest_at(worker.model, False) <= self.loaded_at(worker):
            return None
        return oldest(worker, fleet, but=worker.model)


def oldest(worker: Worker, fleet: ModelFleet, but: str = "") -> str | None:
    """Return the model, other than `but`, whose oldest request waits longest, or None if none waits."""
    waiting = {model: fleet.oldest_at(model, False) for model in worker.loadable if model != but}
    model = min(waiting, key=waiting.__getitem__)
    return model if waiting[model] < math.inf else None


RULES: dict[str, Callable[[MakePolicy], ModelChanges]] = {
    "first come, first served": FirstCome,
    "stay until empty": StayUntilEmpty,
    "one round": OneRound,
    "by rates (ours)": ModelChanges,
}
PLAIN = ("first come, first served", "stay until empty")


@dataclass(frozen=True)
class Setting:
    """Workers, the shares of their models in the requests, and the seconds of a change; `answers` scales answers."""

    name: str
    workers: int
    shares: tuple[float, ...]
    change_s: float
    answers: tuple[float, ...] = ()
    requests: int = 2000

    @property
    def fleet(self) -> list[Instance]:
        """The workers; each can load every model, and begins with one after the other."""
        memory, engine = replace(MACHINE.memory, paged=True), EngineCosts(MACHINE.curves)
        loadable = {model_name(one): LoadableModel(self.change_s, memory, engine) for one in range(len(self.shares))}
        return [
            Instance(f"w{one}", memory, engine=engine, model=model_name(one % len(self.shares)), loadable=loadable)
            for one in range(self.workers)
        ]

    def arrivals(self, rate: float, seed: int) -> list[Arrival]:
        """Draw Poisson arrivals at `rate` a second; at an infinite rate all come at once."""
        rng = np.random.default_rng(seed)
        instants = np.cumsum(rng.exponential(1 / rate, self.requests))
        models = rng.choice(len(self.shares), self.requests, p=self.shares)
        scale = np.array(self.answers or (1.0,) * len(self.shares))[models]
        prompts = PROMPT * rng.lognormal(0, SPREAD, self.requests)
        predicted = ANSWER * scale * rng.lognormal(0, SPREAD, self.requests)
        answers = predicted * rng.lognormal(0, ERROR, self.requests)
        prompts, predicted, upper, answers = (
            np.clip(values, 1, LONGEST).astype(int).tolist()
            for values in (prompts, predicted, UPPER * predicted, answers)
        )
        return [
            Arrival(
                Request(f"{n:06d}", at, prompts[n], LONGEST, predicted[n], upper[n], model=model_name(models[n])),
                answers[n],
            )
            for n, at in enumerate(instants.tolist())
        ]


SETTINGS = (
    Setting("1 worker, 3 models, 10 s", 1, (0.6, 0.3, 0.1), 10.0),
    Setting("1 worker, 3 models, 3 s", 1, (0.6, 0.3, 0.1), 3.0),
    Setting("1 worker, 3 models, 30 s", 1, (0.6, 0.3, 0.1), 30.0),
    Setting("1 worker, 2 equal models, 10 s", 1, (0.5, 0.5), 10.0),
    Setting("1 worker, 3 models, 10 s, the rarest answers thrice as long", 1, (0.6, 0.3, 0.1), 10.0, (1.0, 1.0, 3.0)),
    Setting("2 workers, 4 models, 10 s", 2, (0.4, 0.3, 0.2, 0.1), 10.0, requests=3000),
)


@click.command(help=__doc__)
@click.option("--seeds", type=CommaSeparated(int), default="1,2,3", show_default=True)
@click.option("--settings", "chosen", type=CommaSeparated(int), help="Numbers of settings, from 1; all if not given.")
@json_option
def main(seeds: list[int], chosen: list[int] | None, results: Results) -> None:
    """Simulate every rule in every setting, print, and write after each setting."""
    rows: list[Json] = []
    for number, setting in enumerate(SETTINGS, start=1):
        if not chosen or number in chosen:
            say(setting.name)
            rows += compared(setting, seeds)
            results.write(rows)
    print_table(rows, COLUMNS, f"Means of {len(seeds)} seeds at {LOAD} of saturation; the better plain rule is 1")


def compared(setting: Setting, seeds: Sequence[int]) -> list[Json]:
    """Return a row for each rule, with means over the seeds."""
    saturation = [played("stay until empty", setting, math.inf, seed).requests_per_s for seed in seeds]
    rows: list[Json] = [
        {"setting": setting.name, "rule": rule}
        | mean_of(
            [
                figures(played(rule, setting, LOAD * most, seed), setting)
                for most, seed in zip(saturation, seeds, strict=True)
            ]
        )
        for rule in RULES
    ]
    better = min(row["mean_s"] for row in rows if row["rule"] in PLAIN)
    return [row | {"over_better_plain": round(row["mean_s"] / better, 2)} for row in rows]


def played(rule: str, setting: Setting, rate: float, seed: int) -> Trace:
    """Simulate a rule at a rate of arrivals."""
    policy = RULES[rule](partial(make_policy, "fusion", PolicySettings(LONGEST, LONGEST)))
    costs = EngineCosts(MACHINE.curves)
    return simulate(policy, setting.arrivals(rate, seed), setting.fleet, costs, seed=1, tick_s=TICK_S)


def figures(trace: Trace, setting: Setting) -> Json:
    """Return the figures of one simulation."""
    rarest = model_name(setting.shares.index(min(setting.shares)))
    of_rarest = [one.response_s for one in trace.answers.values() if one.model == rarest]
    changing_s = sum(one.ended_at - one.began_at for one in trace.changes)
    return {
        "requests_per_s": trace.requests_per_s,
        "mean_s": trace.response_s.mean,
        "p99_s": trace.response_s.p99,
        "longest_s": trace.response_s.max,
        "rarest_mean_s": float(np.mean(of_rarest)),
        "changes": len(trace.changes),
        "share_in_changes": changing_s / trace.makespan_s / setting.workers,
    }


def mean_of(runs: Sequence[Json]) -> Json:
    """Return the means of all figures."""
    return {name: round(float(np.mean([run[name] for run in runs])), 3) for name in runs[0]}


def model_name(number: int) -> str:
    """Return the name of a setting's model."""
    return f"m{number}"


if __name__ == "__main__":
    main()

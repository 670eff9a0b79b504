"""Response times of fusion against BATON in small simulations of an overload."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduling.policies.baton import Baton
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.policy import Policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from scheduling.simulation.trace import Trace
from tests.unit.scheduling.scheduling_builders import SLOPED, a_memory, a_request

SATURATION = 10.8  # what `baton` serves of more requests a second


def overload(seed: int, count: int = 200, rate: float = 40.0) -> list[Arrival]:
    chance = np.random.default_rng(seed)
    instants = np.cumsum(chance.exponential(1 / rate, count)).tolist()
    lengths = chance.lognormal(3.0, 1.0, (count, 2)).clip(1, 300).astype(int).tolist()
    return [
        Arrival(a_request(f"{n:04}", at, prompt, answer, limit=400), answer)
        for n, (at, (prompt, answer)) in enumerate(zip(instants, lengths, strict=True))
    ]


def without_rank(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same arrivals, each with the prediction of another request."""
    chance = np.random.default_rng(5)
    lengths = chance.permutation([arrival.generation_length for arrival in arrivals]).tolist()
    return [
        replace(arrival, request=replace(arrival.request, predicted=length, predicted_upper=max(100, length)))
        for arrival, length in zip(arrivals, lengths, strict=True)
    ]


def serve(policy: Policy, arrivals: Sequence[Arrival]) -> Trace:
    fleet = [Instance("w0", a_memory(2000)), Instance("w1", a_memory(1000), speed=2.0)]
    return simulate(policy, arrivals, fleet, EngineCosts(SLOPED), seed=0)


def test_answers_come_sooner_than_from_batons_first_come_first_served() -> None:
    ours, theirs = serve(Fusion(), overload(1)), serve(Baton(), overload(1))
    assert ours.response_s.mean < 0.8 * theirs.response_s.mean
    assert ours.response_s.p99 < theirs.response_s.p99


def test_with_a_useless_predictor_it_serves_as_much_and_no_later_at_saturation() -> None:
    # three runs, because each ends with one request that may end a tenth of the time sooner or later
    runs = [without_rank(overload(seed, count=400, rate=SATURATION)) for seed in (1, 2, 3)]
    ours, theirs = ([serve(make(), run) for run in runs] for make in (Fusion, Baton))
    assert sum(one.requests_per_s for one in ours) >= 0.98 * sum(one.requests_per_s for one in theirs)
    assert sum(one.response_s.mean for one in ours) <= sum(one.response_s.mean for one in theirs)

"""What a seed simulates: how many of whom, and how often which fault; smaller scenarios of the same seed tell more."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

POLICIES = ("magnus", "fusion", "vs", "scls", "baton", "ccb", "sequence")


@dataclass(frozen=True, slots=True)
class Scenario:
    """The numbers of actors, the probabilities of faults (by statement, message or request), the length in seconds."""

    seed: int
    policy: str = "magnus"
    planners: int = 2
    workers: int = 2
    predictor: bool = True
    clients: int = 3
    requests: int = 6  # of each client
    kv_tokens: int = 400
    lease_s: float = 10.0
    lead_s: float = 6.0
    arrive_within_s: float = 40.0
    until_s: float = 40.0  # when the faults end
    calm_s: float = 400.0  # nobody waits longer than this without faults
    kills: float = 0.0
    freezes: float = 0.0
    delays: float = 0.0  # of one actor, as the system does that gives a thread no time
    holds: float = 0.0  # delays within a transaction
    twins: float = 0.0  # frozen processes that are replaced, and come back beside their successors
    errors: float = 0.0
    lost_commits: float = 0.0
    lost_messages: float = 0.0
    repeated_messages: float = 0.0
    late_messages: float = 0.0
    engine_failures: float = 0.0
    poison: float = 0.0
    too_large: float = 0.0
    deadlines: float = 0.0
    cancels: float = 0.0
    twin_requests: float = 0.0  # requests that are equal to others
    drains: bool = False
    chores: int = 1
    jobs: int = 0  # bulk jobs; with them, webhooks and sums of usage
    job_lines: int = 12


def drawn(seed: int) -> Scenario:
    """Returns a seed's scenario: each kind of fault is absent, rare or frequent."""
    draw = random.Random(seed)

    def often(rare: float, frequent: float) -> float:
        return draw.choice((0.0, rare, frequent))

    return Scenario(
        seed,
        policy=draw.choice(POLICIES),
        planners=draw.choice((1, 2, 2)),
        workers=draw.choice((1, 2, 3)),
        predictor=draw.random() < 0.7,
        clients=draw.choice((2, 3)),
        requests=draw.choice((2, 5, 8)),
        kv_tokens=draw.choice((150, 400, 1500)),
        lease_s=draw.choice((4.0, 4.0, 10.0)),
        lead_s=draw.choice((2.0, 6.0)),
        arrive_within_s=draw.choice((0.5, 5.0, 20.0)),
        kills=often(0.001, 0.005),
        freezes=often(0.001, 0.004),
        delays=often(0.002, 0.02),
        holds=often(0.01, 0.1),
        twins=often(0.3, 0.8),
        errors=often(0.002, 0.02),
        lost_commits=often(0.02, 0.15),
        lost_messages=often(0.02, 0.3),
        repeated_messages=often(0.02, 0.3),
        late_messages=often(0.02, 0.3),
        engine_failures=often(0.001, 0.01),
        poison=often(0.0, 0.1),
        too_large=often(0.0, 0.05),
        deadlines=often(0.1, 0.5),
        cancels=often(0.3, 0.8),
        twin_requests=often(0.2, 0.6),
        drains=draw.random() < 0.5,
        chores=draw.choice((1, 2)),
        jobs=draw.choice((0, 0, 1, 1, 2)),
        job_lines=draw.choice((5, 12, 24)),
    )


FAULTS = [field.name for field in fields(Scenario) if isinstance(field.default, float) and not field.default]
SIMPLER: dict[str, Any] = dict.fromkeys(FAULTS, 0.0) | {"drains": False, "predictor": False, "policy": "vs"}
COUNTS = {"planners": 1, "workers": 1, "clients": 0, "requests": 1, "chores": 1, "jobs": 0, "job_lines": 1}


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yields scenarios with one kind of fault less, fewer actors or fewer requests."""
    for name, value in SIMPLER.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})
    for name, least in COUNTS.items():
        if getattr(scenario, name) > least:
            fewer: dict[str, Any] = {name: getattr(scenario, name) - 1}
            yield replace(scenario, **fewer)

"""What a seed simulates: how many of whom, and how often which fault; smaller scenarios of the same seed tell more."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

Values = tuple[Any, ...]


def one_of(*values: Any) -> Any:
    """A field that has one of these values; the first one is the simplest."""
    return field(default=values[0], metadata={"values": values})


def fault(*values: float) -> Any:
    """The probability of a fault, by statement, message or request; no such fault happens once all is calm."""
    return field(default=0.0, metadata={"values": (0.0, *values), "fault": True})


@dataclass(frozen=True, slots=True)
class Scenario:
    """The numbers of actors, the probabilities of faults, the lengths in seconds."""

    seed: int
    policy: str = one_of("vs", "magnus", "fusion", "scls", "scls", "baton", "baton", "ccb", "sequence")
    planners: int = one_of(1, 2, 2)
    workers: int = one_of(1, 2, 3)
    predictors: int = one_of(0, 1)
    clients: int = one_of(2, 3)
    requests: int = one_of(2, 5, 8)  # of each client
    kv_tokens: int = one_of(400, 150, 1500)
    lease_s: float = one_of(4.0, 4.0, 10.0)
    lead_s: float = one_of(6.0, 4.5)  # longer than the 3.75 s between two steps without work
    arrive_within_s: float = one_of(5.0, 0.5, 20.0, 45.0)  # the last: some come when no fault heals a lost one any more
    kills: float = fault(0.001, 0.005)
    freezes: float = fault(0.001, 0.004)
    delays: float = fault(0.003, 0.03)  # of one actor, as by a system that gives a thread no time
    holds: float = fault(0.03, 0.1)  # delays within a transaction
    twins: float = fault(0.3, 0.8)  # frozen processes that are replaced, and come back beside their successors
    errors: float = fault(0.002, 0.02)
    lost_commits: float = fault(0.02, 0.15)  # commits that take place and lose their connection
    lost_messages: float = fault(0.02, 0.3)
    repeated_messages: float = fault(0.02, 0.3)
    late_messages: float = fault(0.02, 0.3)
    receiver_errors: float = fault(0.1, 0.3)  # of the receiver of webhooks
    engine_failures: float = fault(0.001, 0.01)
    drains: float = fault(0.5, 1.0)
    poison: float = one_of(0.0, 0.0, 0.1)
    too_large: float = one_of(0.0, 0.0, 0.05)
    deadlines: float = one_of(0.0, 0.1, 0.5)
    cancels: float = one_of(0.0, 0.3, 0.8)
    equal_requests: float = one_of(0.0, 0.2, 0.6)
    chores: int = one_of(1, 2)
    jobs: int = one_of(0, 0, 1, 1, 2)  # bulk jobs; with them, webhooks and sums of usage
    job_lines: int = one_of(5, 12, 24)


CHOICES: dict[str, Values] = {one.name: one.metadata["values"] for one in fields(Scenario) if one.metadata}
NO_FAULTS: dict[str, Any] = {one.name: 0.0 for one in fields(Scenario) if "fault" in one.metadata}


def drawn(seed: int) -> Scenario:
    """Returns a seed's scenario: each kind of fault is absent, rare or frequent."""
    draw = random.Random(seed)
    return Scenario(seed, **{name: draw.choice(values) for name, values in CHOICES.items()})


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yields scenarios with one kind of fault less, or with fewer of one kind."""
    for name, values in CHOICES.items():
        value = getattr(scenario, name)
        simpler = values[: values.index(value)] if value in values else ()
        fewer = (value // 2, value - 1) if isinstance(value, int) and value > 1 else ()
        for one in (*simpler, *fewer):
            yield replace(scenario, **{name: one})

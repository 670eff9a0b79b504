"""Stores the response times that each policy would have reached with the last requests, as the trainer simulates it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models.planner_state import read_service_state, write_service_state

# An older round says nothing about the present load. Twice as long as the window that a round simulates. Not tuned.
STALE_S = 7200.0
MOST_ERROR = 0.1  # a simulation that misses the measured mean by a larger share is no reason for advice
LEAST_GAIN = 0.05  # a smaller gain may be chance. Not tuned


@dataclass(frozen=True, slots=True)
class ShadowRound:
    """A simulation of all policies with the `requests` of `model` that `policy` really served in `window_s` seconds.

    `mean_s` has the simulated mean response time of each policy, `measured_s` is the real mean. `best`, `gain`, `why`
    and `error` are fields of `scheduling.simulation.policy_lab.Advice`.
    """

    model: str
    policy: str
    requests: int
    window_s: float
    measured_s: float
    mean_s: Mapping[str, float]
    best: str
    gain: float
    why: str
    error: float

    @property
    def trusted(self) -> bool:
        """Whether the simulated mean of the policy in force was close enough to the measured one."""
        return self.error <= MOST_ERROR

    @property
    def advises(self) -> bool:
        """Whether another policy is faster by more than chance."""
        return self.trusted and self.best != self.policy and self.gain >= LEAST_GAIN


def write_shadow_round(connection: Connection, played: ShadowRound) -> None:
    """Stores a round in place of the last one."""
    write_service_state(connection, "shadow", asdict(played))


def read_shadow_round(session: Session, within_s: float = STALE_S) -> ShadowRound | None:
    """Returns the last round, or None if it was stored more than `within_s` seconds ago, or never."""
    stored = read_service_state(session.connection(), "shadow", within_s)
    return None if stored is None else ShadowRound(**stored)

"""Stores the response times that each policy would have reached with the last requests, simulated by `chores`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from models.planning.planner_state import write_service_state
from models.sql import text

# An older round tells nothing of the present load. Twice as long as the window that a round plays. Not tuned.
STALE_S = 7200.0
MOST_ERROR = 0.1  # a simulation that misses the measured mean by a larger share is no ground for advice
LEAST_GAIN = 0.05  # a smaller gain may be chance. Not tuned


@dataclass(frozen=True, slots=True)
class ShadowRound:
    """A round of the lab over `requests` requests of `model` that were answered in `window_s` seconds under `policy`.

    `mean_s` has the simulated mean response time of each policy, `measured_s` is the real one. `best`, `gain`, `why`
    and `error` are those of `scheduling.simulation.policy_lab.Advice`.
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
        """Whether the simulation of the policy in force was close to what was measured."""
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
    stored = session.execute(
        text("""
            select value from service_state where name = 'shadow'
                and updated_at > clock_timestamp() - make_interval(secs => :within_s)
        """),
        {"within_s": within_s},
    ).scalar_one_or_none()
    return None if stored is None else ShadowRound(**stored)

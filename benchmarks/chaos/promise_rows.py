"""The types of promises and of their rows, and the counts of the long and the short form."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: what is promised, its bound, what was measured, and whether the bound held."""

    promise: str
    bound: str
    measured: str
    ok: bool


@dataclass(frozen=True)
class Size:
    """How much each promise does; the defaults are the long form, durations are seconds."""

    kills: int = 200
    kill_every_s: float = 1.5
    kill_requests: int = 10_000
    freezes: int = 15
    freeze_every_s: float = 5.0
    freeze_requests: int = 600
    bulk_kills: int = 50  # kills while bulk jobs are served, and as many while webhooks are sent
    bulk_lines: int = 1_500  # lines of each bulk job; there is one job for every ten kills
    webhook_requests: int = 3_000
    rescues: int = 5  # rescues of each kind: from killed workers, from frozen workers
    broker_queue: int = 5_000  # requests that wait while the broker breaks
    broker_frozen_s: float = 10.0
    # answers before a rate is measured; in the long form the trainer's early refits are over by then
    settled_after: int = 4_500
    window_s: float = 20.0  # seconds over which a rate is measured
    recovery_s: float = 30.0  # seconds after which the rate must be back
    postgres_breaks: tuple[str, ...] = ("restarted", "killed", "frozen")
    postgres_frozen_s: float = 20.0
    rate_kills_s: float = 300.0  # seconds during which a process is killed every 10 s
    cut_s: float = 40.0  # how long connections are cut
    idle_s: float = 30.0  # how long the idle and half-sent connections are held
    hostile_policies: tuple[str, ...] = ("fusion", "magnus", "baton")
    poison_policies: tuple[str, ...] = ("fusion", "magnus")  # the last one also has a row that kills the process
    poison_mates: int = 31  # ordinary requests submitted beside the poison
    clocks_ahead: tuple[str, ...] = ("planner's host", "beat's host")  # whose host's clock is ahead
    leave_s: float = 1800.0  # seconds during which a worker leaves every so often
    leave_every_s: float = 60.0
    soak_s: float = 1800.0  # seconds of the soak; 0: not in this form
    warm_up_s: float = 300.0  # seconds of the soak before its measurement
    # The short form's windows hold tens of answers, so that a ratio varies by a fifth by chance: its bounds on ratios
    # are multiplied by this.
    slack: float = 1.0
    budget_s: float = 48 * 60.0  # seconds for all promises but the soak


LONG = Size()
SHORT = Size(
    kills=12,
    kill_every_s=1.5,
    kill_requests=300,
    freezes=6,
    freeze_every_s=1.5,
    freeze_requests=60,
    bulk_kills=5,
    bulk_lines=100,
    webhook_requests=60,
    rescues=1,
    broker_queue=200,
    broker_frozen_s=3.0,
    settled_after=100,
    window_s=6.0,
    recovery_s=8.0,
    postgres_breaks=("killed",),
    postgres_frozen_s=6.0,
    rate_kills_s=10.0,
    cut_s=6.0,
    idle_s=6.0,
    hostile_policies=("fusion",),
    poison_policies=("magnus",),
    poison_mates=7,
    clocks_ahead=("planner's host",),
    leave_s=30.0,
    leave_every_s=6.0,
    soak_s=0.0,
    warm_up_s=0.0,
    slack=0.5,
    budget_s=5 * 60.0,
)


@dataclass(frozen=True)
class Promise:
    """A function that breaks a service and judges it: a service of its own in a directory, or else the shared one."""

    name: str
    run: Callable[..., list[Row]]
    own_service: bool = False
    breaks_servers: bool = False  # needs a Postgres and a broker that the service itself started

    @property
    def may_be_given_servers(self) -> bool:
        """Whether it can run on a given Postgres and broker."""
        return not self.own_service and not self.breaks_servers

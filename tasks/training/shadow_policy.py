"""Simulates the requests of the last hour under every policy, in rounds, with one percent of a core."""

from threading import Event, Thread
from time import thread_time

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.connections.session import in_transaction, make_sessions
from models.operations.shadow_round import ShadowRound, read_shadow_round, write_shadow_round
from models.planning.served_work import NothingToPlay, measured_work
from scheduling.sharing.policy_factory import PolicySettings
from scheduling.simulation.policy_lab import FEW, advise, calibrate, play, policies_to_play

SHARE = 0.01  # the share of a core that the simulation may use
BURST_S = 0.02  # CPU seconds between two pauses, for which other threads of the process may have to wait. Not tuned
BACK_S = 3600.0  # a round simulates the requests of this many seconds
# A round simulates at most this many requests, the newest ones. A thousand take about a second for each policy, so that
# a round takes half an hour. More would make rounds longer, fewer would make their means noisier. Not tuned.
MOST_REQUESTS = 1000
PAUSE_S = 300.0  # seconds from one round to the next, whichever trainer simulates them. Not tuned

log = structlog.get_logger()


class Pace:
    """Lets a computation go on for BURST_S at a time, and sleeps in between so that it takes SHARE of a core."""

    def __init__(self, stopping: Event, share: float = SHARE) -> None:
        self._stopping, self._share = stopping, share
        self._since = thread_time()

    def __call__(self) -> bool:
        """Returns whether to go on; sleeps before if a pause is due."""
        used_s = thread_time() - self._since
        if used_s > BURST_S:
            self._stopping.wait(used_s / self._share - used_s)
            self._since = thread_time()
        return not self._stopping.is_set()


class ShadowPolicy(Thread):
    """A thread of the trainer that simulates rounds, but none if another process stored a round within PAUSE_S."""

    def __init__(self, database: Engine, policy: str, settings: PolicySettings, alive_s: float) -> None:
        """`policy` is in force unless the database names another one; `alive_s` bounds the age of heartbeats."""
        super().__init__(name="shadow policy", daemon=True)
        self._database, self._policy, self._settings, self._alive_s = database, policy, settings, alive_s
        self._stopping = Event()

    def run(self) -> None:
        """Play rounds until stopped."""
        while not self._stopping.wait(PAUSE_S):
            try:
                with make_sessions(self._database)() as session:
                    if read_shadow_round(session, PAUSE_S) is not None:
                        continue
                self.play_round(Pace(self._stopping))
            except SQLAlchemyError as error:
                log.warning("shadow round not played", error=str(error))
            except Exception:  # a fault of one policy or request must not end the rounds
                log.exception("shadow round not played")

    def stop(self) -> None:
        """Give up the round in progress and end the thread."""
        self._stopping.set()

    def play_round(self, goes_on: Pace) -> None:
        """Simulates the last requests under every policy and stores the result; does nothing if they are too few."""
        try:
            with self._database.connect() as connection:
                served = measured_work(connection, BACK_S, self._alive_s, MOST_REQUESTS)
        except NothingToPlay:
            return
        if len(served.work.counted) < FEW:
            return
        in_force = served.policy or self._policy
        overheads = calibrate(in_force, served.work, self._settings, goes_on)
        played = {
            name: play(name, served.work, self._settings, overheads, goes_on) for name in policies_to_play(in_force)
        }
        if not goes_on():
            return
        said = advise(in_force, served.measured, played)
        result = ShadowRound(
            served.model,
            in_force,
            len(served.work.counted),
            round(served.window_s, 1),
            round(served.measured.mean_s, 3),
            {name: round(figures.mean_s, 3) for name, figures in played.items()},
            said.best,
            round(said.gain, 4),
            said.why,
            round(said.error, 4),
        )
        in_transaction(self._database, write_shadow_round)(result)

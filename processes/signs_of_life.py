"""The two signs of life of a process whose steps run: a heartbeat in the database and a pulse for its supervisor."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from threading import Event, Thread

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.connections.session import make_engine
from models.operations import process_heartbeats
from models.process_identity import this_process
from processes.loop import Loop

HEARTBEAT_EVERY_S = 3.0  # a third of the age at which a process counts as silent; each is a small write. Not tuned
# One step of planner, predictor or beat takes milliseconds, at most the few seconds of a time-out of database or
# broker. Operators should see a longer step long before a supervisor ends the process. Not tuned.
STUCK_AFTER_S = 20.0
PULSE_FD = "PULSE_FD"  # the environment variable with the pipe's descriptor, set by `cli/hosting/signs_of_life.py`
PULSE_EVERY_S = 2.0  # far below the 10 s of silence after which a supervisor restarts a process. Not tuned otherwise

log = structlog.get_logger()


class Heartbeat(Thread):
    """A thread that writes the heartbeat of one process of this kind, for example the planner's, to the database."""

    def __init__(
        self, kind: str, database_url: str, loops: Sequence[Loop] = (), busy_s: Callable[[], float] | None = None
    ) -> None:
        """`busy_s` returns the seconds for which the process's present step has lasted: by default that of `loops`."""
        super().__init__(name="heartbeat", daemon=True)
        self._kind, self._instance = kind, this_process()
        # a heartbeat is one statement, which needs no round trips for `begin` and `commit`
        self._database: Engine = make_engine(
            database_url, pool_size=1, name=f"magnus {kind} heartbeat", autocommit=True
        )
        self._loops = loops
        self._busy_s = busy_s or (lambda: max((loop.busy_s for loop in loops), default=0.0))
        self._stopping = Event()

    def run(self) -> None:
        """Write every HEARTBEAT_EVERY_S until stopped."""
        while True:
            if self._busy_s() < STUCK_AFTER_S:
                self._write()
            if self._stopping.wait(HEARTBEAT_EVERY_S):
                return

    def stop(self) -> None:
        """End the thread and delete the heartbeat, so that the process does not count as missing."""
        self._stopping.set()
        self.join()
        try:
            with self._database.begin() as connection:
                process_heartbeats.forget(connection, self._kind, self._instance)
        except SQLAlchemyError as error:
            log.warning("heartbeat not deleted", error=type(error).__name__)
        self._database.dispose()

    def _write(self) -> None:
        failure = next((loop.failure for loop in self._loops if loop.failure), None)
        try:
            with self._database.begin() as connection:
                process_heartbeats.write(connection, self._kind, self._instance, time.time(), failure)
        except SQLAlchemyError as error:
            log.warning("heartbeat not written", error=type(error).__name__)


class Pulse(Thread):
    """Writes a byte to the supervisor's pipe every PULSE_EVERY_S while `works()`; ends without a supervisor."""

    def __init__(self, works: Callable[[], bool]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._works = works
        self._pipe = os.environ.get(PULSE_FD)

    def run(self) -> None:
        """Write until the process ends."""
        if self._pipe is None:
            return
        pause = Event()
        while True:
            if self._works():
                with contextlib.suppress(OSError):  # a full pipe, or a supervisor that has ended
                    os.write(int(self._pipe), b".")
            pause.wait(PULSE_EVERY_S)

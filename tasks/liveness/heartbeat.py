"""A process's heartbeat: a thread that writes it to the database, and falls silent when the process is stuck.

A frozen process writes none; one whose work has lasted for too long writes none either, though its threads still run.
"""

import os
import socket
import time
from collections.abc import Callable
from threading import Event, Thread

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.operations import process_heartbeats
from models.session import make_engine

EVERY_S = 3.0  # a third of the age at which a process counts as silent; one small write each. Not tuned otherwise
# One piece of work of planner, predictor or beat takes milliseconds, at most the few seconds of a time-out of database
# or broker. One that lasts longer than this is worth an operator's look, long before a supervisor ends the process. Not
# tuned.
STUCK_AFTER_S = 20.0

log = structlog.get_logger()


class Heartbeat(Thread):
    """The heartbeat of one process of this kind: beat, planner, predictor or trainer."""

    def __init__(self, kind: str, database_url: str, busy_s: Callable[[], float] = lambda: 0.0) -> None:
        """`busy_s`: how long the process's present piece of work has lasted. Nothing is written before `start`."""
        super().__init__(name="heartbeat", daemon=True)
        self._kind, self._instance = kind, f"{socket.gethostname()}:{os.getpid()}"
        # a heartbeat is one statement: without round trips for begin and end
        self._database: Engine = make_engine(
            database_url, pool_size=1, name=f"magnus {kind} heartbeat", autocommit=True
        )
        self._busy_s = busy_s
        self._stopping = Event()

    def run(self) -> None:
        """Write every EVERY_S until stopped."""
        while True:
            if self._busy_s() < STUCK_AFTER_S:
                self._write()
            if self._stopping.wait(EVERY_S):
                return

    def stop(self) -> None:
        """End the thread and delete the heartbeat, so that nobody misses the process."""
        self._stopping.set()
        self.join()
        try:
            with self._database.begin() as connection:
                process_heartbeats.forget(connection, self._kind, self._instance)
        except SQLAlchemyError as error:
            log.warning("heartbeat not deleted", error=type(error).__name__)
        self._database.dispose()

    def _write(self) -> None:
        try:
            with self._database.begin() as connection:
                process_heartbeats.write(connection, self._kind, self._instance, time.time())
        except SQLAlchemyError as error:
            log.warning("heartbeat not written", error=type(error).__name__)

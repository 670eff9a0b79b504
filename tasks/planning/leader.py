"""Leadership among planner processes: the one whose connection holds the planner's lock plans, the others stand by."""

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from models import planner_state
from tasks.planning.planner import Planner, PlannerRules

log = structlog.get_logger()


class Leader:
    """Takes the lead when the lock is free and keeps it until an error; the step after an error begins a new term."""

    def __init__(self, engine: Engine, rules: PlannerRules) -> None:
        self._engine, self._rules = engine, rules
        self._connection: Connection | None = None
        self._planner: Planner | None = None  # None unless this process leads

    def step(self, can_send: bool = True) -> list[tuple[int, str]]:
        """One planner's step if this process leads: the batches to send now, as (batch id, worker's name).

        `can_send`: the broker took the last message, so that a worker which takes nothing is to blame itself.

        After any error, which it raises again, this process does not lead any more.
        """
        try:
            planner = self._planner or self._lead()
            return planner.step(can_send) if planner else []
        except Exception:
            self.resign()
            raise

    @property
    def all_joinable(self) -> bool:
        """Whether this process leads and, in its last step, every worker was decoding rows that others may join."""
        return self._planner is not None and self._planner.all_joinable

    @property
    def due_in_s(self) -> float | None:
        """Seconds from the last step to the instant when a policy wants to be asked again; None if none does."""
        return self._planner.due_in_s if self._planner else None

    def resign(self) -> None:
        """Release the lock and drop the planner with all that it has in memory."""
        connection, leads = self._connection, self._planner is not None
        self._connection = self._planner = None
        if connection is None:
            return
        try:
            if leads:
                connection.rollback()
                planner_state.step_down(connection)
        except SQLAlchemyError as error:  # the server releases the lock once it notices that the connection is gone
            log.warning("lock not released", error=str(error))
        finally:
            connection.invalidate()
            connection.close()

    def _lead(self) -> Planner | None:
        """A new term with a new planner; None while another process holds the lock."""
        connection = self._connection or self._engine.connect()
        self._connection = connection
        with connection.begin():
            epoch = planner_state.try_to_lead(connection)
        if epoch is None:
            return None
        log.info("leading", epoch=epoch)
        self._planner = Planner(connection, epoch, self._rules)
        return self._planner

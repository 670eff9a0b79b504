"""Leadership: at most one planner plans, whoever holds the lock of a connection that lives; any other stands by."""

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from models import planner_state
from tasks.planning.planner import Planner, PlannerRules

log = structlog.get_logger()


class Leader:
    """Takes the lead when nobody has it and keeps it until an error; then the next step begins a new term."""

    def __init__(self, engine: Engine, rules: PlannerRules) -> None:
        self._engine, self._rules = engine, rules
        self._connection: Connection | None = None
        self._planner: Planner | None = None

    def step(self) -> list[tuple[int, str]]:
        """A planner's step if this process leads; the batches to be sent now, with their workers."""
        try:
            planner = self._planner or self._lead()
            return planner.step() if planner else []
        except Exception:
            self.resign()
            raise

    @property
    def all_joinable(self) -> bool:
        """Whether this process leads and saw every worker decode rows that others may join."""
        return self._planner is not None and self._planner.all_joinable

    @property
    def due_in_s(self) -> float | None:
        """Seconds after the last step in which the next is due, whatever happens; None if nothing is."""
        return self._planner.due_in_s if self._planner else None

    def resign(self) -> None:
        """Give the lead up and forget everything."""
        connection, leads = self._connection, self._planner is not None
        self._connection = self._planner = None
        if connection is None:
            return
        try:
            if leads:
                connection.rollback()
                planner_state.step_down(connection)
        except SQLAlchemyError as error:  # then the server frees the lock when it notices
            log.warning("lock not given back", error=str(error))
        finally:
            connection.invalidate()
            connection.close()

    def _lead(self) -> Planner | None:
        connection = self._connection or self._engine.connect()
        self._connection = connection
        with connection.begin():
            epoch = planner_state.try_to_lead(connection)
        if epoch is None:
            return None
        log.info("leading", epoch=epoch)
        self._planner = Planner(connection, epoch, self._rules)
        return self._planner

"""Leadership among planner processes: the one that holds the planner's lead plans, the others stand by."""

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from models.planning import leadership, planner_state
from models.planning.leadership import Lead, LeadLost
from tasks.planning.planner import Planner, Send, leave_to_caller
from tasks.planning.planner_rules import PlannerRules

log = structlog.get_logger()


class Leader:
    """Takes the lead when it is free and keeps it until an error; the step after an error starts a new term."""

    def __init__(self, engine: Engine, rules: PlannerRules) -> None:
        self._engine, self._rules = engine, rules
        self._connection: Connection | None = None
        self._lead: Lead | None = None  # the last lead of this process
        self._planner: Planner | None = None  # None unless this process leads
        self._failed = self._careful = False  # unforeseen error in the last step, in the last two steps
        self.stands_by = False  # whether another process led when this one last asked

    def step(self, *, sent: bool = True, send: Send = leave_to_caller) -> list[tuple[int, str]]:
        """One planner's step if this process leads: the batches to send now, as (batch id, worker's name).

        `sent` and `send` as in `Planner.step`. Raises any error again; the next step then starts a new term. After a
        repeated unforeseen error it first searches the queue for the cause.
        """
        try:
            planner = self._planner or self._take_the_lead()
            batches = planner.step(sent=sent, send=send) if planner else []
        except Exception as error:
            self._careful = self._failed and not isinstance(error, SQLAlchemyError | LeadLost)
            self._failed = not isinstance(error, SQLAlchemyError | LeadLost)
            self._drop_planner()
            raise
        self._failed = self._careful = False
        return batches

    @property
    def leads(self) -> bool:
        """Whether this process led at its last step."""
        return self._planner is not None

    @property
    def all_joinable(self) -> bool:
        """Whether this process leads and, in its last step, every worker was decoding rows that others may join."""
        return self._planner is not None and self._planner.all_joinable

    @property
    def has_work(self) -> bool:
        """Whether this process leads and, at its last step, something waited or was in flight."""
        return self._planner is not None and self._planner.has_work

    @property
    def due_in_s(self) -> float | None:
        """Seconds from the last step to the instant when a policy wants to be asked again; None if none does."""
        return self._planner.due_in_s if self._planner else None

    def resign(self) -> None:
        """Give up the lead, and drop the planner with its state in memory."""
        if self._planner is not None and self._connection is not None and self._lead is not None:
            try:
                self._connection.rollback()
                with self._connection.begin():
                    leadership.give_up(self._connection, self._lead)
            except SQLAlchemyError as error:  # it expires by itself
                log.warning("lead not given up", error=str(error))
        self._drop_planner()

    def _drop_planner(self) -> None:
        connection, self._connection, self._planner = self._connection, None, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def _take_the_lead(self) -> Planner | None:
        """Start a term with a new planner; returns None while another process leads."""
        connection = self._connection or self._engine.connect()
        self._connection = connection
        with connection.begin():
            lead = leadership.take(connection, "planner", self._rules.lead_s, mine=self._lead)
            self.stands_by = lead is None
            if lead is None:
                return None
            epoch = planner_state.next_epoch(connection)
        log.info("leading", epoch=epoch, fence=lead.fence)
        self._lead, self._planner = lead, Planner(connection, lead, epoch, self._rules, careful=self._careful)
        return self._planner

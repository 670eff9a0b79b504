"""Leadership among planner processes: the process that holds the planner's lead plans, the others stand by."""

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from models import planner_state
from models.planning import leadership
from models.planning.leadership import Lead, LeadLost
from processes.planner_rules import PlannerRules
from tasks.planning.planner import Outlook, Planner, Send, leave_to_caller

log = structlog.get_logger()


class Leader:
    """Takes the lead when it is free and keeps it until an error; the step after an error begins a new term."""

    def __init__(self, engine: Engine, rules: PlannerRules) -> None:
        self._engine, self._rules = engine, rules
        self._connection: Connection | None = None
        self._lead: Lead | None = None  # the last lead that this process had
        self._planner: Planner | None = None  # None unless this process leads
        self._failed = self._careful = False  # whether the last step, and the last two steps, had an unforeseen error
        self.stands_by = False  # whether another process led when this one last asked

    def step(self, *, broker_error: str | None = None, send: Send = leave_to_caller) -> list[tuple[int, str]]:
        """Takes one planner's step if this process leads; returns the batches to send, as (batch id, worker's name).

        Raises any error of the step again. The next step begins a new term; after two errors it searches for the cause.
        """
        try:
            planner = self._planner or self._take_the_lead()
            batches = planner.step(broker_error=broker_error, send=send) if planner else []
        except Exception as error:
            self._careful = self._failed and not isinstance(error, SQLAlchemyError | LeadLost)
            self._failed = not isinstance(error, SQLAlchemyError | LeadLost)
            self._drop_planner()
            raise
        if planner is None or planner.fetched_all:  # a request that is not fetched yet may be the cause
            self._failed = self._careful = False
        return batches

    @property
    def leads(self) -> bool:
        """Whether this process led at its last step."""
        return self._planner is not None

    @property
    def outlook(self) -> Outlook:
        """What the planner's last step says about the next one; without the lead there is nothing to do."""
        return Outlook() if self._planner is None else self._planner.outlook

    def resign(self) -> None:
        """Gives up the lead and drops the planner with everything that it has in memory."""
        if self._planner is not None and self._connection is not None and self._lead is not None:
            try:
                self._connection.rollback()
                with self._connection.begin():
                    leadership.give_up(self._connection, self._lead)
            except SQLAlchemyError as error:  # the lead expires by itself
                log.warning("lead not given up", error=str(error))
        self._drop_planner()

    def _drop_planner(self) -> None:
        connection, self._connection, self._planner = self._connection, None, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def _take_the_lead(self) -> Planner | None:
        """Begins a new term with a new planner; returns None while another process leads."""
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

"""Connections of simulated processes: each statement waits for its turn, and may fail with an error of the server.

A statement that waits for a lock lets other actors go on. After each transaction that ends, the statements that have
got their locks run to their answer before anybody goes on, so that the server's own timing decides nothing.
"""

import os
import select
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg._preparing import PrepareManager
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import READY_R, READY_W
from sqlalchemy import Engine, Pool, event

from models.connections import session
from models.connections.bounded_connection import BoundedConnection
from tests.simulation.actors import Actor
from tests.simulation.database import CLOCK_FILE
from tests.simulation.primitives import world

T = TypeVar("T")
# An answer that does not come within this long may be waiting for a lock; longer than the server's deadlock_timeout.
SUSPECTED_AFTER_S = 0.004
ENDED = psycopg.pq.PGconn.connect_start(b"")
ENDED.finish()
# A schedule depends on no real time; the simulation ends what is idle in a transaction by itself.
NO_REAL_TIME = b"set lock_timeout = 0; set idle_in_transaction_session_timeout = 0; set statement_timeout = 0"
HOLDS_S = (0.02, 0.2, 1.0, 3.0)
IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
# The errors that a statement may meet, by class: SQLSTATE, and whether the connection is lost with it.
ERRORS = {
    "connection lost": ("08006", True),
    "serialization failure": ("40001", False),
    "out of memory": ("53200", False),
    "disk full": ("53100", False),
    "server ends": ("57P01", True),
    "read only": ("25006", False),
    "file system": ("58030", False),
}
# Errors that no statement of the product may meet, because clients and loops would only try it again.
FAULTS = (psycopg.errors.DeadlockDetected, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.DataError)
IDLE = "idle in transaction for too long"
STATES = {**ERRORS, IDLE: ("25P03", True)}


class Prepared(PrepareManager):
    """Prepared statements that outlive a rollback: planning takes longer than running, and no schema changes."""

    prepare_threshold = 0

    def clear(self) -> bool:
        return False


class Server:
    """The simulation's own connection, which asks who waits for whom, and the server's clock."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection._prepared = Prepared()
        self._clock = Path(self.sql("show data_directory")[0][0]) / CLOCK_FILE
        self._connection.pgconn.prepare(b"blocked", b"select from unnest(pg_blocking_pids($1)) limit 1")
        self.frees_locks = False  # since it was last asked who waits

    def sql(self, statement: Any, values: Any = None) -> list[Any]:
        """Runs a statement of the simulation itself, and returns its rows."""
        found = self._connection.execute(statement, values)
        return found.fetchall() if found.description else []

    def set_clock(self, now: float) -> None:
        """Moves the server's clock to `now` seconds of the simulation; no statement reads another one."""
        os.truncate(self._clock, round(now * 1_000_000))

    def blocked(self, pid: int) -> bool:
        """Returns whether a statement of this server process waits for a lock."""
        return self._connection.pgconn.exec_prepared(b"blocked", [b"%d" % pid]).ntuples > 0

    def settle(self, blocked: list[Actor]) -> None:
        """Returns once each of these actors' statements has its answer or waits for a lock."""
        if not self.frees_locks:
            return
        self.frees_locks = False
        for actor in blocked:
            connection = actor.blocked
            assert isinstance(connection, SimulatedConnection)
            while not connection.ready(0) and not self.blocked(connection.info.backend_pid):
                connection.ready(0.001)


_engines: dict[str, Engine] = {}
# Sessions whose connections have ended, with their prepared statements, by the name of their engine: a new session
# costs as much as 50 statements.
_spare: dict[str, list[tuple[PGconn, PrepareManager]]] = defaultdict(list)


def engine_of(name: str, make: Callable[[], Engine]) -> Engine:
    """Returns an engine without connections, the same for each process of a name: it keeps its compiled statements."""
    if name not in _engines:
        _engines[name] = make()
    _engines[name].dispose(close=False)
    return _engines[name]


class SimulatedCursor(psycopg.Cursor[Any]):
    """A cursor whose statements wait for their turn."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> "SimulatedCursor":
        connection = self.connection
        assert isinstance(connection, SimulatedConnection)
        if connection.in_use and world().current is not None:
            words = words_of(query)
            connection.take_turn(words)
            if (error := connection.next_error()) is not None:
                if connection.autocommit and error != IDLE and STATES[error][1] and world().chance(0.5):
                    world().tell("the statement took place, its answer was lost")
                    super().execute(query, *args, **kwargs)
                query, args, kwargs = connection.failing(error), (), {}
        super().execute(query, *args, **kwargs)
        return self


def words_of(query: Any) -> str:
    """Returns the beginning of a statement, as a schedule shows it."""
    text = query.decode() if isinstance(query, bytes) else str(query)
    return " ".join(text.split())[:110]


class SimulatedConnection(BoundedConnection):
    """A connection of an actor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = SimulatedCursor
        self.name = ""
        self.in_use = False  # after its set-up, which is no part of the schedule
        self._lost_after = self._lost_meanwhile = False
        if world().current is not None:
            self.process = world().current.process  # type: ignore[union-attr]
            self.process.connections[self] = None

    @classmethod
    def connect(cls, *args: Any, context: Any = None, **kwargs: Any) -> Any:
        name, prepared = kwargs["application_name"], None
        if _spare[name]:
            session, prepared = _spare[name].pop()
            connection = cls(session)
            connection._adapters = AdaptersMap(context.adapters) if context else None
        else:
            connection = super().connect(*args, context=context, **kwargs | {"connect_timeout": 60})
        connection.name, connection._prepared = name, prepared or Prepared()
        return connection

    def close(self) -> None:
        if self.closed or self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            return super().close()
        session, self.pgconn, self._closed = self.pgconn, ENDED, True
        session.exec_(b"rollback")
        world().server.frees_locks = True
        session.exec_(b"reset all; unlisten *; select pg_advisory_unlock_all()")
        _spare[self.name].append((session, self._prepared))
        return None

    def take_turn(self, words: str, often: int = 1) -> None:
        """Waits for the turn of the actor, perhaps for long within a transaction, and gives the server the time."""
        if self.pgconn.transaction_status in IN_TRANSACTION and world().chance(world().scenario.holds * often):
            world().delay(world().acting, world().random.choice(HOLDS_S))
        world().statement(words)
        if not self.closed:
            world().server.set_clock(world().now)

    def commit(self) -> None:
        if not self.in_use or world().current is None or self.pgconn.transaction_status not in IN_TRANSACTION:
            return super().commit()
        actor = world().acting
        actor.committing = self
        try:
            self.take_turn("commit", often=4)  # while all locks of the transaction are held
        finally:
            actor.committing = None
        lost = not self._lost_meanwhile and world().chance(world().scenario.lost_commits)
        if (error := "connection lost" if lost else self.next_error()) is not None:
            if lost or (STATES[error][1] and error != IDLE and world().chance(0.5)):
                world().tell("the commit took place, its answer was lost")
                super().commit()
            self._fail_commit(error)
        return super().commit()

    def _fail_commit(self, error: str) -> None:
        """Raises the error; as on a real server, no transaction is left."""
        try:
            psycopg.Cursor(self).execute(self.failing(error))
        finally:
            if not self.closed:
                self.pgconn.exec_(b"rollback")

    def next_error(self) -> str | None:
        """Returns the error that the next statement meets, or None."""
        if self._lost_meanwhile:
            return IDLE
        return world().random.choice(tuple(ERRORS)) if world().chance(world().scenario.errors) else None

    def failing(self, error: str) -> str:
        """Returns a statement that fails with this error."""
        sqlstate, self._lost_after = STATES[error]
        world().tell(f"fails: {error}")
        return f"do $$ begin raise exception using errcode = '{sqlstate}', message = 'simulated: {error}'; end $$"

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Waits for the server's answer; while the statement waits for a lock, other actors go on."""
        try:
            state = next(gen)
            while True:
                ready = self.ready(SUSPECTED_AFTER_S, state)
                if not ready:
                    if world().current is not None and world().server.blocked(self.info.backend_pid):
                        world().block(self)
                    continue
                state = gen.send(ready)
        except StopIteration as ended:
            result: T = ended.value
            return result
        except FAULTS as error:
            if world().current is not None:
                world().fail(f"{type(error).__name__}: {error}".partition("\n")[0])
            raise
        finally:
            if self._lost_after:
                self._lost_after = False
                self.close()
            if self.pgconn.transaction_status != TransactionStatus.INTRANS:
                world().server.frees_locks = True

    def ready(self, within_s: float, state: int = READY_R) -> int:
        """Returns for which of `state` the connection is ready: READY_R (the server has sent something), READY_W."""
        if self.closed:
            return state
        socket = [self.pgconn.socket]
        reads, writes, _ = select.select(
            socket if state & READY_R else [], socket if state & READY_W else [], [], within_s
        )
        return (READY_R if reads else 0) | (READY_W if writes else 0)

    def drop(self, committed: bool) -> None:
        if self.closed:
            return
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:  # it waits for a lock
            self.cancel()
            while self.pgconn.get_result() is not None:
                pass
        if self.pgconn.transaction_status in IN_TRANSACTION:
            self.pgconn.exec_(b"commit" if committed else b"rollback")
        self.close()

    def end_idle(self) -> None:
        """Ends the transaction if it runs no statement; the next one learns that the connection is lost."""
        if not self.closed and self.pgconn.transaction_status in IN_TRANSACTION:
            self.pgconn.exec_(b"rollback")
            self._lost_meanwhile = world().server.frees_locks = True


def install() -> None:
    """Makes the connections of the product's pools simulated ones."""
    setattr(session, "BoundedConnection", SimulatedConnection)  # noqa: B010  # the one seam of the product's pools
    event.listen(Pool, "checkout", _checked_out)


def _checked_out(connection: Any, record: Any, proxy: Any) -> None:
    if isinstance(connection, SimulatedConnection) and not connection.in_use:
        connection.pgconn.exec_(NO_REAL_TIME)
        connection.in_use = True

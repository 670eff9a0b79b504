"""Heartbeats of processes other than workers, by the database's clock, and the errors of their steps."""

from dataclasses import dataclass

from sqlalchemy import Connection

from models.connections.sql import text

# The kinds of processes that a service needs. Without one it still accepts requests, and reports the kind as missing.
NEEDED = ("beat", "planner", "predictor", "chores", "trainer")
# A process whose heartbeat is older counts as gone. Three times the 3 s between two heartbeats, so that a process that
# is slow for a moment does not count as gone. Not tuned.
SILENT_AFTER_S = 10.0
WHAT_IS_MISSING = {
    "beat": "predictor and planner get no ticks from it",
    "planner": "requests are accepted and kept, and none is given to a worker",
    "predictor": "answers' lengths are guessed from each application's mean",
    "chores": "bulk jobs stand still, webhooks are not sent, nothing old is deleted",
    "trainer": "nothing is learned from new answers",
}


@dataclass(frozen=True, slots=True)
class Process:
    """A process with its kind and name (`models/process_identity.py`); ages and clocks in seconds."""

    kind: str
    instance: str
    heartbeat_age_s: float
    clock_ahead_s: float
    failure: str | None = None  # the error of its steps; None if its steps succeed

    @property
    def silent(self) -> bool:
        """Whether its heartbeat is older than SILENT_AFTER_S."""
        return self.heartbeat_age_s > SILENT_AFTER_S

    @property
    def works(self) -> bool:
        """Whether it has a fresh heartbeat, and its steps succeed."""
        return not self.silent and self.failure is None


def write(connection: Connection, kind: str, instance: str, own_clock: float, failure: str | None = None) -> None:
    """Records that this process lives, and why its steps fail; `own_clock` is its host's time since the epoch."""
    connection.execute(
        text("""
            insert into process_heartbeats (kind, instance, clock_ahead_s, failure)
            values (:kind, :instance, :own_clock - extract(epoch from clock_timestamp())::float8, :failure)
            on conflict (kind, instance) do update set heartbeat_at = clock_timestamp(),
                clock_ahead_s = excluded.clock_ahead_s, failure = excluded.failure
        """),
        {"kind": kind, "instance": instance, "own_clock": own_clock, "failure": failure},
    )


def forget(connection: Connection, kind: str, instance: str) -> None:
    """Deletes the heartbeat of a process that stops regularly."""
    connection.execute(
        text("delete from process_heartbeats where kind = :kind and instance = :instance"),
        {"kind": kind, "instance": instance},
    )


def processes(connection: Connection) -> list[Process]:
    """Returns every process that has not stopped regularly, also silent ones, ordered by kind and instance."""
    rows = connection.execute(
        text("""
            select kind, instance, extract(epoch from clock_timestamp() - heartbeat_at)::float8 as heartbeat_age_s,
                clock_ahead_s, failure
            from process_heartbeats order by kind, instance
        """)
    )
    return [Process(**row._mapping) for row in rows]


def missing(found: list[Process]) -> list[str]:
    """Returns a sentence for each needed kind without a living process, with the consequence: `no beat runs: …`."""
    alive = {process.kind for process in found if not process.silent}
    return [f"no {kind} runs: {WHAT_IS_MISSING[kind]}" for kind in NEEDED if kind not in alive]


def failing(found: list[Process]) -> list[Process]:
    """Returns the living processes whose steps fail."""
    return [process for process in found if not process.silent and process.failure is not None]

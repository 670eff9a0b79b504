"""Checks by triggers in the test's own database that every accepted request was answered exactly once."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.harness import Row

# Endings: a request got its answer. Rewrites: an answered row was written again. Moves: a request changed directly from
# one batch to another.
WATCH = """
    create table if not exists chaos_endings (id text, status text, at timestamptz default clock_timestamp());
    create table if not exists chaos_rewrites (id text, at timestamptz default clock_timestamp());
    create table if not exists chaos_moves (id text, at timestamptz default clock_timestamp());
    create index if not exists chaos_endings_at on chaos_endings (at);
    create or replace function chaos_note() returns trigger language plpgsql as $$ begin
        if old.finished_at is not null then insert into chaos_rewrites (id) values (new.id);
        elsif new.finished_at is not null then insert into chaos_endings (id, status) values (new.id, new.status);
        elsif old.status = 'in_progress' and new.status = 'in_progress' and old.batch_id <> new.batch_id then
            insert into chaos_moves (id) values (new.id);
        end if;
        return new; end $$;
    create or replace trigger chaos_note after update on requests for each row execute function chaos_note();
"""


class Database(Protocol):
    """A database that runs SQL statements."""

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Run a statement; returns its rows."""
        ...


@dataclass(frozen=True)
class Verdict:
    """The outcome of the accepted requests."""

    accepted: int
    completed: int
    failed: int
    missing: int  # not in the database, or without an answer
    rewritten: int  # answers recorded more than once
    in_two_batches: int
    most_attempts: int

    @property
    def lost(self) -> int:
        """Accepted requests without an answer: missing, waiting or failed."""
        return self.missing + self.failed

    def rows(self, promise: str, after_s: float | None = None) -> list[Row]:
        """Make both rows of the table: no request was lost, and none was answered twice."""
        return [self.lost_row(promise, after_s), self.once_row(promise)]

    def lost_row(self, promise: str, after_s: float | None = None) -> Row:
        """Make the table row, which holds if no request was lost."""
        took = "" if after_s is None else f"; all answered {after_s:.1f} s after the last was accepted"
        measured = f"{self.lost} of {self.accepted} ({self.failed} failed, {self.missing} unanswered){took}"
        return Row(f"{promise}: accepted requests lost", "0", measured, self.lost == 0 and self.accepted > 0)

    def once_row(self, promise: str) -> Row:
        """Make the table row, which holds if each request was answered once and was in one batch at a time."""
        measured = f"{self.rewritten} answered twice, {self.in_two_batches} in two batches, of {self.accepted}"
        ok = self.rewritten == self.in_two_batches == 0
        return Row(f"{promise}: results recorded for a request", "exactly one", measured, ok)


def verdict(database: Database, ids: Collection[str]) -> Verdict:
    """Read the outcome of these requests from the database."""
    ((completed, failed, answered, attempts),) = database.sql(
        """select count(*) filter (where status in ('completed', 'incomplete')),
        count(*) filter (where status not in ('completed', 'incomplete', 'queued', 'in_progress')),
        count(*) filter (where finished_at is not null), coalesce(max(attempts), 0)
        from requests where id = any(:ids)""",
        ids=list(ids),
    )
    ((rewritten, twice, moved),) = database.sql(
        """select (select count(*) from chaos_rewrites where id = any(:ids)),
        (select count(*) - count(distinct id) from chaos_endings where id = any(:ids)),
        (select count(*) from chaos_moves where id = any(:ids))""",
        ids=list(ids),
    )
    return Verdict(len(ids), completed, failed, len(ids) - answered, rewritten + twice, moved, attempts)

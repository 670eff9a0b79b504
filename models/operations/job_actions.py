"""What operators do to jobs of any tenant: find those that match, cancel them, submit failed ones again."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from models import client_requests
from models.sql import text
from models.tables import RequestStatus

MOST_AT_ONCE = 10_000  # jobs that one action is about; more are done by asking again. Not tuned.
# Jobs that one statement changes: short enough for the web's limit of 2 s a statement, and for those who wait for rows.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs; None: whatever theirs is."""

    statuses: tuple[RequestStatus, ...]
    tenant: str | None = None
    application: str | None = None


def matching(session: Session, which: JobFilter) -> list[str]:
    """The ids of up to MOST_AT_ONCE + 1 jobs that match, the oldest of each status first."""
    conditions = "".join(
        f" and {column} = :{column}" for column in ("tenant", "application") if getattr(which, column) is not None
    )
    rows = session.execute(
        text(f"""
            select job.id from unnest(cast(:statuses as text[])) as state, lateral (
                select id from requests where status = state{conditions} order by arrived_at, id limit :most
            ) as job limit :most
        """),  # noqa: S608  # names of columns
        {
            "statuses": [status.value for status in which.statuses],
            "most": MOST_AT_ONCE + 1,
            **({} if which.tenant is None else {"tenant": which.tenant}),
            **({} if which.application is None else {"application": which.application}),
        },
    )
    return [row.id for row in rows]


def cancel_jobs(session: Session, ids: Sequence[str]) -> list[str]:
    """Cancel queued jobs at once, ask for the cancel of running ones, leave final ones alone; returns which it was."""
    return [one for chunk in _chunks(ids) for one in client_requests.cancel(session, None, chunk)]


def submit_again(session: Session, ids: Sequence[str]) -> list[str]:
    """Submit the failed and cancelled ones among these jobs again, as new jobs; returns the ids of the new ones.

    The old ones stay as they ended. What was not to be stored has no text any more, and is left out.
    """
    made: list[str] = []
    for chunk in _chunks(ids):
        rows = session.execute(
            text("""
                insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens,
                    input_tokens, limit_tokens, priority, needs)
                select 'resp_' || replace(cast(gen_random_uuid() as text), '-', ''), tenant, model, application,
                    instructions, input, body, prompt_tokens, input_tokens, limit_tokens, priority, needs
                from requests where id = any(cast(:ids as text[])) and status in ('failed', 'cancelled')
                    and (input <> '' or instructions <> '')
                returning id
            """),
            {"ids": chunk},
        )
        made += [row.id for row in rows]
        session.commit()
    return made


def _chunks(ids: Sequence[str]) -> list[list[str]]:
    return [list(ids[first : first + CHUNK]) for first in range(0, len(ids), CHUNK)]

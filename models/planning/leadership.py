"""Leader election, so that only one of several processes works: a row with a holder, a fencing number and an expiry.

The expiry is a time of the database's clock. The lead is bound to no session, so that it works through a pooler. The
server itself releases a frozen leader's locks (`models/connections/session.py:IDLE_IN_TRANSACTION_S`).
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from models.connections.sql import run, text
from models.process_identity import has_ended, this_process


class LeadLost(Exception):
    """Another process leads, or may have led meanwhile, so that this process's state in memory is out of date."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this {name} does not lead any more")


@dataclass(frozen=True, slots=True)
class Lead:
    """The right to work as the only `name`, such as the only planner; valid while its row has this fencing number."""

    name: str
    fence: int


def take(connection: Connection, name: str, lead_s: float, mine: Lead | None = None) -> Lead | None:
    """Takes the lead for `lead_s` seconds; returns None while a process that has not ended holds an unexpired lead."""
    present = connection.execute(
        text("""
            select fence, holder, expires_at <= clock_timestamp() as expired from leaderships where name = :name
        """),
        {"name": name},
    ).one_or_none()
    if present is not None:  # a stand-by asks often, so the row is first only read
        given_up = (mine is not None and present.fence == mine.fence) or has_ended(present.holder)
        if not (present.expired or given_up):
            return None
    fence = connection.execute(
        text("""
            with free as (
                select name from leaderships
                where name = :name and fence = :seen and (:given_up or expires_at <= clock_timestamp())
                for update skip locked
            ), taken as (
                update leaderships l set holder = :holder, fence = l.fence + 1,
                    expires_at = clock_timestamp() + make_interval(secs => :lead_s)
                from free where l.name = free.name returning l.fence
            ), first as (
                insert into leaderships (name, holder, fence, expires_at)
                select :name, :holder, 1, clock_timestamp() + make_interval(secs => :lead_s) where :seen = 0
                on conflict do nothing returning fence
            )
            select fence from taken union all select fence from first
        """),
        {
            "name": name,
            "seen": 0 if present is None else present.fence,
            "given_up": present is not None and given_up,
            "holder": this_process(),
            "lead_s": lead_s,
        },
    ).scalar_one_or_none()
    return None if fence is None else Lead(name, int(fence))


def renew(connection: Connection, lead: Lead, lead_s: float) -> None:
    """Extends the lead to `lead_s` seconds from now; no other process takes it before the commit. Raises LeadLost."""
    renewed = run(
        connection,
        """
            update leaderships set expires_at = clock_timestamp() + make_interval(secs => :lead_s)
            where name = :name and fence = :fence returning name
        """,
        {"name": lead.name, "fence": lead.fence, "lead_s": lead_s},
    )
    if not renewed:
        raise LeadLost(lead.name)


def hold(connection: Connection, lead: Lead) -> None:
    """Locks the lead until the transaction ends, for writes that rely on it. Raises LeadLost."""
    held = run(
        connection,
        "select 1 from leaderships where name = :name and fence = :fence for share",
        {"name": lead.name, "fence": lead.fence},
    )
    if not held:
        raise LeadLost(lead.name)


def give_up(connection: Connection, lead: Lead) -> None:
    """Ends the lead, so that another process can lead at once."""
    connection.execute(
        text("update leaderships set expires_at = clock_timestamp() where name = :name and fence = :fence"),
        {"name": lead.name, "fence": lead.fence},
    )

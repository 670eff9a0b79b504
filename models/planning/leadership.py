"""Leader election, so that only one of several processes works: a row with a holder, a fencing number and an expiry.

The expiry is by the database's clock. The lead does not depend on a session, so it works through a pooler, and the
server itself releases a frozen leader's locks (`models/session.py:IDLE_IN_TRANSACTION_S`).
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from models.process_identity import has_ended, this_process
from models.sql import run, text


class LeadLost(Exception):
    """Another process leads, or may have led meanwhile: this process's state in memory is out of date."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"this {name} does not lead any more")


@dataclass(frozen=True, slots=True)
class Lead:
    """The right to work as the only `name`, valid while the row has this fencing number."""

    name: str
    fence: int


def take(connection: Connection, name: str, lead_s: float, mine: Lead | None = None) -> Lead | None:
    """Take the lead for `lead_s` seconds; None while another process, unless it has ended, holds an unexpired one."""
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
    """Extend the lead to `lead_s` seconds from now; no other takes it before the commit. Raises LeadLost."""
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
    """Lock the lead until the transaction ends, for writes that rely on it. Raises LeadLost."""
    held = run(
        connection,
        "select 1 from leaderships where name = :name and fence = :fence for share",
        {"name": lead.name, "fence": lead.fence},
    )
    if not held:
        raise LeadLost(lead.name)


def give_up(connection: Connection, lead: Lead) -> None:
    """Let another process lead at once."""
    connection.execute(
        text("update leaderships set expires_at = clock_timestamp() where name = :name and fence = :fence"),
        {"name": lead.name, "fence": lead.fence},
    )

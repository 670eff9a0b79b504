"""Requests of the tier `off_peak` are served in the off-peak hours of the database's clock, and in no others."""

from dataclasses import replace
from datetime import datetime

import pytest

from models.client_requests import RequestView
from models.connections.session import make_sessions
from models.planning.queue_position import place_in_queue
from models.planning.queue_snapshot import read_queue_snapshot
from models.planning.waiting_reasons import waits_for
from models.tables import StoredRequest
from off_peak_hours import OffPeakHours
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage
from tests.integration.planner_stage import RULES

NIGHT = replace(RULES, off_peak=OffPeakHours.parse("22:00-06:00 Europe/Berlin"), lead_s=1e6, snapshot_every_s=0.0)
# Postgres finds these functions before its own, because the search path names `pg_catalog` behind `public`.
CLOCK = """
    create table clock (at timestamptz);
    insert into clock values ('2026-10-24T21:00+02:00');
    create function clock_timestamp() returns timestamptz language sql volatile as 'select at from clock';
    create function statement_timestamp() returns timestamptz language sql volatile as 'select at from clock'
"""


class Night(Stage):
    """A database whose clock tests set, with one worker."""

    def set_clock(self, at: str) -> None:
        self.sql("update clock set at = :at", at=at)
        self.sql("update workers set heartbeat_at = :at", at=at)

    def arrive(self, id: str, tier: str = "off_peak") -> None:
        (now,) = self.sql("select at from clock")[0]
        self.request(id, tier=tier, arrived_at=now)

    def begun(self) -> set[str]:
        return {name for name, status in self.requests("status").items() if status != "queued"}

    def shown(self, id: str) -> tuple[str | None, datetime | None]:
        """What a client is told that the request waits for, and its ETA."""
        with make_sessions(self.database)() as session:
            request = session.get_one(StoredRequest, id)
            view = RequestView(request, None, 0, self.sql("select at from clock")[0][0])
            snapshot = read_queue_snapshot(session)
            place = place_in_queue(view, snapshot)
            return waits_for(view, snapshot, place), place.eta_at


@pytest.fixture
def night(stage: Stage) -> Night:
    """An evening, an hour before the off-peak hours of the night in which clocks go back."""
    night = Night(stage.database)
    for statement in CLOCK.split(";"):
        night.sql(statement)
    (name,) = night.sql("select current_database()")[0]
    night.sql(f'alter database "{name}" set search_path = public, pg_catalog')
    night.database.dispose()
    night.worker()
    night.set_clock("2026-10-24T21:00+02:00")
    return night


def test_off_peak_work_waits_for_its_hours_and_is_served_in_them(night: Night) -> None:
    leader = Leader(night.database, NIGHT)
    night.arrive("later")
    night.arrive("now", "flex")
    leader.step()
    assert night.begun() == {"now"}
    told, eta_at = night.shown("later")
    assert told is not None
    assert "off-peak hours begin at 2026-10-24 20:00 UTC" in told
    assert eta_at is not None
    assert eta_at >= datetime.fromisoformat("2026-10-24T22:00+02:00")
    night.set_clock("2026-10-24T21:59:59+02:00")
    leader.step()
    assert night.begun() == {"now"}
    night.end_batch(1)
    night.set_clock("2026-10-24T22:00+02:00")
    leader.step()
    assert night.begun() == {"now", "later"}
    leader.resign()


@pytest.mark.parametrize("restarted", [False, True])
def test_hours_over_midnight_and_a_clock_change_end_on_time_also_with_another_planner(
    night: Night, restarted: bool
) -> None:
    leader = Leader(night.database, NIGHT)
    night.arrive("begun")
    night.set_clock("2026-10-25T05:59+01:00")  # nine hours after 22:00
    leader.step()
    assert night.begun() == {"begun"}
    night.arrive("waiting")  # the worker is busy, so that the policy has it when the hours end
    leader.step()
    night.set_clock("2026-10-25T06:00+01:00")
    if restarted:
        leader.resign()
        leader = Leader(night.database, NIGHT)
    leader.step()
    night.end_batch(1)  # what has begun may end
    night.arrive("another", "flex")
    leader.step()
    assert night.begun() == {"begun", "another"}
    night.end_batch(2)
    night.set_clock("2026-10-25T22:00+01:00")
    leader.step()
    assert night.begun() == {"begun", "another", "waiting"}
    leader.resign()


def test_a_batch_that_becomes_off_peak_work_waits_and_one_that_is_no_longer_runs(night: Night) -> None:
    leader = Leader(night.database, NIGHT)
    night.sql("update workers set drained_at = clock_timestamp()")
    night.arrive("becomes", "flex")
    night.arrive("ceases")
    leader.step()
    night.sql("update requests set tier = 'off_peak', planner_epoch = 0 where id = 'becomes'")  # as `tell_lines` does
    night.sql("update requests set tier = 'flex', planner_epoch = 0 where id = 'ceases'")
    leader.step()
    night.sql("update workers set drained_at = null")
    leader.step()
    assert night.begun() == {"ceases"}
    leader.resign()


def test_without_hours_off_peak_work_that_was_stored_before_is_served(night: Night) -> None:
    leader = Leader(night.database, replace(NIGHT, off_peak=None))
    night.arrive("stored")
    leader.step()
    assert night.begun() == {"stored"}
    leader.resign()

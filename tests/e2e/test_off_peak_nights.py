"""Off-peak work on a whole service over midnight, a clock change and a planner's end, by a clock that the test sets."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from openai import OpenAI
from psycopg import sql

from inference.toy.toy_applications import APPLICATIONS
from tests.conftest import Administrator, with_database
from tests.e2e.test_batches import ended, line
from tests.e2e.whole_service import Up, eventually, running_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

HOURS = "22:00-06:00 Europe/Berlin"
# The service reads the time of its database. Postgres finds these functions before its own, because the search path
# names `pg_catalog` behind `public`.
CLOCK = """
    create schema test;
    create table test.clock (shift interval);
    insert into test.clock values ('0');
    create function clock_timestamp() returns timestamptz language sql volatile as
        'select pg_catalog.clock_timestamp() + shift from test.clock';
    create function statement_timestamp() returns timestamptz language sql volatile as
        'select pg_catalog.clock_timestamp() + shift from test.clock';
    create function now() returns timestamptz language sql volatile as
        'select pg_catalog.clock_timestamp() + shift from test.clock';
"""


def set_clock(database: psycopg.Connection[Any], at: str) -> None:
    database.execute("update test.clock set shift = %s::timestamptz - pg_catalog.clock_timestamp()", [at])


class Night:
    """A service with off-peak hours, and the clock of its database."""

    def __init__(self, up: Up, client: OpenAI, database: psycopg.Connection[Any]) -> None:
        self.up, self.client, self.database = up, client, database

    def set_clock(self, at: str) -> None:
        set_clock(self.database, at)

    def wait_until(self, at: str) -> None:
        eventually(
            lambda: self.database.execute("select clock_timestamp() > %s::timestamptz", [at]).fetchone() == (True,)
        )

    def send(self, tier: Any = "off_peak") -> str:
        sent = self.client.responses.create(
            model="bundled",
            instructions=APPLICATIONS["double"].instruction,
            input="river cloud",
            service_tier=tier,
            background=True,
        )
        return sent.id

    def serve(self) -> str:
        """Sends an off-peak call that is to be served now."""
        sent = self.send()
        eventually(lambda: self.answered(sent))
        return sent

    def answered(self, id: str) -> bool:
        return self.client.responses.retrieve(id).status == "completed"

    def waits_for(self, id: str) -> str:
        return str(self.client.responses.retrieve(id).to_dict()["magnus"]["waits_for"])  # type: ignore[index]

    def started_at(self, id: str) -> str:
        row = self.database.execute("select started_at at time zone 'UTC' from requests where id = %s", [id]).fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
def night(postgres_url: str, administrator: Administrator, redis_url: str) -> Iterator[Night]:
    """A service whose clock shows nine, on the evening before clocks go back."""
    name = f"night_{os.getpid()}"
    administrator.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    url = with_database(postgres_url, name)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as database:
        database.execute(CLOCK)
        database.execute(sql.SQL("alter database {} set search_path = public, pg_catalog").format(sql.Identifier(name)))
        database.execute("set search_path = public, pg_catalog")
        set_clock(database, "2026-10-24T21:00+02:00")  # before the service starts: from then on, time goes forwards
        own = {"MAGNUS_DATABASE_URL": url, "MAGNUS_REDIS_URL": redis_url, "MAGNUS_OFF_PEAK": HOURS}
        with running_up(**own) as up, OpenAI(base_url=f"{up.url}/v1", api_key=up.key) as client:
            yield Night(up, client, database)
    administrator.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_off_peak_work_is_served_over_midnight_and_a_clock_change_until_its_hours_end(night: Night) -> None:
    night.set_clock("2026-10-24T21:30+02:00")
    waiting, other = night.send(), night.send("default")
    lines = "\n".join([line("a", "stone"), line("b", "tree")]).encode()
    file = night.client.files.create(file=("lines.jsonl", lines), purpose="batch")
    batch = night.client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/responses",
        completion_window="24h",
        extra_body={"magnus": {"service_tier": "off_peak"}},
    )
    eventually(lambda: night.answered(other))
    eventually(lambda: "off-peak hours begin at 2026-10-24 20:00 UTC" in night.waits_for(waiting))
    night.set_clock("2026-10-24T21:59:55+02:00")
    eventually(lambda: night.answered(waiting))
    assert night.started_at(waiting) >= "2026-10-24 20:00:00"
    assert ended(night.client, batch).status == "completed"

    for before, after in (
        ("2026-10-24T23:59:57+02:00", "2026-10-25T00:00:01+02:00"),  # midnight
        ("2026-10-25T02:59:57+02:00", "2026-10-25T02:00:01+01:00"),  # the hour from two to three comes twice
    ):
        night.set_clock(before)
        night.serve()
        night.wait_until(after)
        night.serve()

    night.set_clock("2026-10-25T05:59:50+01:00")  # nine hours after ten, because one came twice
    night.serve()
    night.wait_until("2026-10-25T06:00:01+01:00")
    late = night.send()
    eventually(lambda: "off-peak hours begin at 2026-10-25 21:00 UTC" in night.waits_for(late))
    os.kill(night.up.pid("planner"), signal.SIGKILL)
    other = night.send("default")
    eventually(lambda: night.answered(other))  # another planner has read the queue
    assert not night.answered(late)
    night.set_clock("2026-10-25T21:59:58+01:00")
    eventually(lambda: night.answered(late))
    assert night.started_at(late) >= "2026-10-25 21:00:00"

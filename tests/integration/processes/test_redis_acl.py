"""The documented line of Redis's access control list is enough for every kind of process."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from cli.checks.startup_checks import broker_problem
from cli.hosting.process_commands import BIN
from tests.integration.database_stage import Stage, eventually

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "start.md"


@pytest.fixture
def admin(redis_url: str) -> Iterator[redis.Redis]:
    """The broker's administrator; the documented user is there, with an empty log of what was refused."""
    (line,) = re.findall(r"^ +user (magnus on >PASSWORD .*)$", PAGE.read_text(), re.MULTILINE)
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.execute_command("ACL", "SETUSER", *line.split())
        client.acl_log_reset()
        yield client
        client.acl_deluser("magnus")


@pytest.fixture
def restricted_url(redis_url: str, admin: redis.Redis) -> str:
    """The broker's URL with the documented user."""
    found = urlsplit(redis_url)
    return found._replace(netloc=f"magnus:PASSWORD@{found.hostname}:{found.port}").geturl()


LONG = [pytest.param(process, marks=pytest.mark.long) for process in ("beat", "flower")]


@pytest.mark.parametrize("process", ["planner", *LONG])
def test_a_process_is_refused_nothing(
    process: str, tmp_path: Path, database_url: str, stage: Stage, admin: redis.Redis, restricted_url: str
) -> None:
    settings = {
        "MAGNUS_DATABASE_URL": database_url,
        "MAGNUS_REDIS_URL": restricted_url,
        "MAGNUS_DASHBOARD_PASSWORD": "a-long-secret",
        "MAGNUS_FLOWER_PORT": "0",
    }
    command = [str(BIN / "magnus"), "run", process]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **settings}, stderr=log) as running,
    ):
        try:
            listens = "psubscribe" if process != "beat" else "lpush"
            eventually(lambda: admin.acl_log() or any(one["cmd"] == listens for one in of_magnus(admin)), within_s=60.0)
            assert admin.acl_log() == []
        finally:
            running.send_signal(signal.SIGTERM)


def of_magnus(admin: redis.Redis) -> list[dict[str, str]]:
    """The connections of the documented user."""
    return [one for one in admin.client_list() if one["user"] == "magnus"]


def test_the_start_checks_pass_and_other_programs_keys_are_out_of_reach(restricted_url: str) -> None:
    assert broker_problem(restricted_url) is None
    with redis.Redis.from_url(restricted_url) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.get("session:1")

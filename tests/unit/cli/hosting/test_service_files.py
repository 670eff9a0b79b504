"""What a running service leaves behind for other commands, and how they find it."""

import dataclasses
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from cli.hosting.service_files import (
    RunningService,
    api_address,
    database_url,
    forget_service,
    fresh_metrics,
    keep_private,
    read_or_create_secret,
    running_service,
    write_secret,
)
from cli.output import Unreachable
from settings import Settings

SERVICE = RunningService(
    os.getpid(), "http://127.0.0.1:1", "http://127.0.0.1:2", "postgresql://here/magnus", "redis://here", "magnus", "pw"
)


def test_addresses_come_from_the_running_service(tmp_path: Path) -> None:
    SERVICE.write(tmp_path)
    write_secret(tmp_path / "api-key", "magnus-key\n")
    settings = Settings(state_dir=tmp_path)
    assert running_service(tmp_path) == SERVICE
    assert api_address(settings) == ("http://127.0.0.1:1", "magnus-key")
    assert database_url(settings) == "postgresql://here/magnus"


def test_what_is_configured_goes_before_what_is_running(tmp_path: Path) -> None:
    SERVICE.write(tmp_path)
    settings = Settings(
        state_dir=tmp_path, url="http://other", api_key=SecretStr("other-key"), database_url="postgresql://other"
    )
    assert api_address(settings) == ("http://other", "other-key")
    assert database_url(settings) == "postgresql://other"


@pytest.mark.parametrize("url", ["http://localhost:1/v1", "http://127.0.0.1:1/", "HTTP://LOCALHOST:1"])
def test_the_running_services_own_address_gets_its_key(tmp_path: Path, url: str) -> None:
    SERVICE.write(tmp_path)
    write_secret(tmp_path / "api-key", "magnus-key\n")
    assert api_address(Settings(state_dir=tmp_path, url=url)) == (url, "magnus-key")


@pytest.mark.parametrize(
    "url",
    [
        "http://other:1",
        "http://127.0.0.1:2",
        "https://127.0.0.1:1",
        "http://127.0.0.1:1@other",
        "http://127.0.0.1",
        "[",
    ],
)
def test_no_other_address_gets_the_running_services_key(tmp_path: Path, url: str) -> None:
    SERVICE.write(tmp_path)
    write_secret(tmp_path / "api-key", "magnus-key\n")
    with pytest.raises(Unreachable, match="no API key: give --api-key"):
        api_address(Settings.model_construct(state_dir=tmp_path, url=url, api_key=None))


def test_without_a_service_the_remedy_is_named(tmp_path: Path) -> None:
    SERVICE.write(tmp_path)
    forget_service(tmp_path)
    settings = Settings(state_dir=tmp_path)
    with pytest.raises(Unreachable, match="start one with `magnus up`"):
        api_address(settings)
    with pytest.raises(Unreachable, match="MAGNUS_DATABASE_URL"):
        database_url(settings)


def test_a_service_that_starts_is_told_from_none(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    with pytest.raises(Unreachable, match=rf"no database yet: `magnus up` \(process {os.getpid()}\) starts"):
        database_url(Settings(state_dir=tmp_path))
    SERVICE.write(tmp_path)
    assert database_url(Settings(state_dir=tmp_path)) == SERVICE.database_url


def test_a_service_whose_process_is_gone_is_not_running(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    dataclasses.replace(SERVICE, pid=gone.pid).write(tmp_path)
    assert running_service(tmp_path) is None


def test_an_address_without_a_key_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="--api-key"):
        api_address(Settings(state_dir=tmp_path, url="http://other"))


def test_secrets_are_for_their_owner_only_and_kept(tmp_path: Path) -> None:
    first = read_or_create_secret(tmp_path / "password")
    SERVICE.write(tmp_path)
    assert read_or_create_secret(tmp_path / "password") == first
    assert len(first) >= 24
    for name in ("password", "service.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_what_is_written_from_now_on_and_the_logs_of_before_are_for_their_owner_only(tmp_path: Path) -> None:
    state_dir = tmp_path / "new" / "state"
    logs = tmp_path / "old" / "logs"
    logs.mkdir(parents=True)
    (logs / "web.log").touch(mode=0o644)
    umask = os.umask(0o022)
    try:
        keep_private(state_dir)
        keep_private(logs.parent)
        (state_dir / "processes.json").touch()
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (state_dir, logs, logs / "web.log", state_dir / "processes.json")]
    assert modes == [0o700, 0o700, 0o600, 0o600]


def test_what_web_processes_count_is_counted_from_nothing_at_each_start_and_removed_at_the_end(tmp_path: Path) -> None:
    killed = fresh_metrics(tmp_path)
    (killed / "histogram_1.db").write_bytes(bytes(8))
    directory = fresh_metrics(tmp_path)
    assert not killed.exists()
    assert list(directory.iterdir()) == []
    forget_service(tmp_path)
    assert not directory.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:sec:r/et@x@db:5432/magnus", "postgresql://me:***@db:5432/magnus"),
        (
            "postgresql://db/magnus?user=me&password=secret&sslmode=require",
            "postgresql://db/magnus?user=me&password=***&sslmode=require",
        ),
        ("redis://:secret@127.0.0.1:6379/0", "redis://:***@127.0.0.1:6379/0"),
        ("postgresql://postgres@/magnus?host=/tmp/socket", "postgresql://postgres@/magnus?host=/tmp/socket"),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
    ],
)
def test_what_may_be_printed_has_no_password(url: str, shown: str) -> None:
    service = dataclasses.replace(SERVICE, database_url=url, redis_url=url, dashboard_password="hidden")
    printed = service.without_secrets()
    assert "hidden" not in str(printed)
    assert (printed["database_url"], printed["redis_url"]) == (shown, shown)

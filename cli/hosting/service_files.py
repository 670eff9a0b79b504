"""The files that describe a running service: its addresses, API key and password for commands, and its metrics."""

import json
import os
import re
import secrets
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from cli.output import Unreachable
from setting_formats import LOOPBACK
from settings import Settings

PASSWORD = re.compile(r"(://[^:@/?]*:).*(?=@)|(password=)[^&]*")  # in a URL
MEMORY = Path("/dev/shm")  # noqa: S108 — a file system in memory, on Linux; names made there are random


@dataclass(frozen=True)
class RunningService:
    """The process id of a running `magnus up`, its addresses, and the password of dashboard and Flower."""

    pid: int
    url: str
    flower_url: str
    database_url: str
    redis_url: str
    dashboard_user: str
    dashboard_password: str

    def write(self, state_dir: Path) -> None:
        """Write service.json, which only this user can read."""
        write_secret(state_dir / "service.json", json.dumps(asdict(self), indent=1) + "\n")

    def without_secrets(self) -> dict[str, Any]:
        """Returns the fields that may be printed, since output goes into logs: no password, and none within a URL."""
        fields = asdict(self)
        del fields["dashboard_password"]
        for name in ("database_url", "redis_url"):
            fields[name] = PASSWORD.sub(r"\1\2***", fields[name])
        return fields


def running_service(state_dir: Path) -> RunningService | None:
    """Returns the service that runs in this directory, or None; the file of a killed service does not count."""
    try:
        service = RunningService(**json.loads((state_dir / "service.json").read_text()))
    except FileNotFoundError:
        return None
    return service if psutil.pid_exists(service.pid) else None


def forget_service(state_dir: Path) -> None:
    """Delete service.json and the metrics of its web processes."""
    (state_dir / "service.json").unlink(missing_ok=True)
    remove_metrics(state_dir)


def fresh_metrics(state_dir: Path) -> Path:
    """Returns an empty directory in which the web processes of this host add up their metrics, in memory if possible.

    The processes map the files there: on a full disk, touching a new page would end a process (SIGBUS).
    """
    remove_metrics(state_dir)
    where = MEMORY if os.access(MEMORY, os.W_OK) else state_dir
    directory = Path(tempfile.mkdtemp(prefix="magnus-metrics-", dir=where))
    (state_dir / "metrics").symlink_to(directory)
    return directory


def remove_metrics(state_dir: Path) -> None:
    """Remove the directory of `fresh_metrics`, also one that a killed `magnus up` has left."""
    link = state_dir / "metrics"
    shutil.rmtree(link.resolve(), ignore_errors=True)
    link.unlink(missing_ok=True)


def database_url(settings: Settings) -> str:
    """Returns the URL of the configured database, else of the running service's; raises Unreachable."""
    remedy = "start one, or point MAGNUS_STATE_DIR to its directory"
    return _configured_or_running(settings, "database_url", "database", remedy)


def api_address(settings: Settings) -> tuple[str, str]:
    """Returns URL and API key of the service, as configured or from the state directory; raises Unreachable.

    The key of the state directory has all scopes; therefore only its own service's address gets it.
    """
    url = _configured_or_running(settings, "url", "service", "start one with `magnus up`, or give --url")
    key = settings.api_key.get_secret_value() if settings.api_key else None
    if key is None and _is_at(url, running_service(settings.state_dir)):
        key = read_secret(settings.state_dir / "api-key")
    if key is None:
        raise Unreachable(f"no API key: give --api-key or set MAGNUS_API_KEY ({url} needs one)")
    return url, key


def _is_at(url: str, service: RunningService | None) -> bool:
    """Returns whether this is the URL of the service."""
    try:
        given, own = httpx.URL(url), httpx.URL(service.url if service else "")
    except httpx.InvalidURL:
        return False
    here = given.host == own.host or {given.host, own.host} <= {*LOOPBACK}
    return service is not None and (given.scheme, given.port or 80) == (own.scheme, own.port or 80) and here


def _configured_or_running(settings: Settings, name: str, what: str, remedy: str) -> str:
    """Returns the setting of this name, else the value that the running service has; raises Unreachable."""
    url: str | None = getattr(settings, name) or getattr(running_service(settings.state_dir), name, None)
    supervisor = read_secret(settings.state_dir / "lock") or ""
    if url is None and supervisor.isdigit() and psutil.pid_exists(int(supervisor)):
        raise Unreachable(
            f"no {what} yet: `magnus up` (process {supervisor}) starts or ends in {settings.state_dir}; try again "
            "once it says that it is up"
        )
    if url is None:
        setting = f"MAGNUS_{name.upper()}"
        raise Unreachable(f"no {what}: {setting} is not set and no `magnus up` runs in {settings.state_dir}; {remedy}")
    return url


def keep_private(state_dir: Path) -> None:
    """Make the directory, and let only this user read what the service writes; earlier logs become private, too."""
    os.umask(0o077)
    state_dir.mkdir(parents=True, exist_ok=True)
    logs = state_dir / "logs"
    if logs.is_dir():
        logs.chmod(0o700)
        for log in (*logs.glob("*.log"), *logs.glob("*.log.1")):
            log.chmod(0o600)


def read_secret(path: Path) -> str | None:
    """Returns the content of a file without the white space around it, or None if there is no such file."""
    return path.read_text().strip() if path.exists() else None


def write_secret(path: Path, content: str) -> None:
    """Write a file that only this user may read; a reader sees the old content or the new one, never a part."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(content)
    fresh.replace(path)


def read_or_create_secret(path: Path) -> str:
    """Returns the secret in this file; the first call makes it."""
    secret = read_secret(path)
    if secret is None:
        secret = secrets.token_urlsafe(18)
        write_secret(path, secret + "\n")
    return secret

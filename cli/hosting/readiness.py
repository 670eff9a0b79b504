"""Checks whether a started program is ready, and waits for it."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg
import redis
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from cli.hosting.child_process import ChildProgram, ProgramFailed, SettingRefused
from models.planning import live_fleet

SAY_EVERY_S = 10.0  # a start of the bundled model takes less, also on a busy machine; not tuned
POLL_S = 0.02  # delays the next start by half of this on average; not tuned
# Greatest age of a ready worker's last heartbeat: six times MAGNUS_HEARTBEAT_S (0.5 s), so that a slow worker counts,
# and short enough that the row of an earlier worker with the same name does not count. Not tuned.
WORKER_ALIVE_S = 3.0


def await_ready(
    program: ChildProgram,
    process: subprocess.Popen[bytes],
    log: Path,
    interrupted: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
    say_every_s: float = SAY_EVERY_S,
) -> None:
    """Return once the program is ready, or once `interrupted`.

    Raises ProgramFailed if it ends or takes too long, SettingRefused if it ends because of a setting.

    Every `say_every_s` it says what it waits for, if that has changed.
    """
    began, said, old_bytes = time.monotonic(), "", log.stat().st_size if log.exists() else 0
    say_at = began + say_every_s
    while not interrupted() and not program.ready():
        if process.poll() is not None:
            if process.returncode == SettingRefused.exit_code:
                raise SettingRefused(program.name, log)
            raise ProgramFailed(program.name, f"ended with {_status(process.returncode)}", log)
        if (now := time.monotonic()) > began + program.ready_within_s:
            raise ProgramFailed(program.name, f"was not ready within {program.ready_within_s:.0f} s", log)
        if now > say_at:
            before, said = said, f"still waiting for {program.name}{_last_said(log, old_bytes)}; see {log}"
            say_at = now + say_every_s
            if said != before:
                say(said)
        time.sleep(POLL_S)


def _last_said(log: Path, old_bytes: int) -> str:
    """Returns a colon and the last line after a log's `old_bytes`, of one in JSON its event and reason, or nothing."""
    lines = log.read_bytes()[old_bytes:].decode(errors="replace").splitlines() if log.exists() else []
    try:
        fields = json.loads(lines[-1])
        return "".join(f": {fields[name]}" for name in ("event", "error", "why") if name in fields)
    except IndexError:
        return ""
    except (ValueError, TypeError):
        return f": {lines[-1][:200]}"


def _status(code: int) -> str:
    return str(code) if code >= 0 else f"{signal.Signals(-code).name} (killed)"


def postgres_answers(url: str) -> bool:
    """Whether the Postgres at this URL accepts connections."""
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def broker_answers(url: str) -> bool:
    """Whether the broker at this URL answers and accepts the URL's password."""
    try:
        with redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1) as client:
            return bool(client.ping())
    except (redis.RedisError, ValueError):  # still loading, another server on that port, or a wrong address
        return False


def worker_is_alive(engine: Engine, name: str) -> bool:
    """Whether the database has a fresh heartbeat of the worker; the first one comes once its model is loaded."""
    try:
        with engine.connect() as connection:
            return any(worker.name == name for worker in live_fleet.live_workers(connection, WORKER_ALIVE_S))
    except SQLAlchemyError:  # the database is unreachable; its own supervisor restarts it
        return False


def api_is_ready(url: str) -> bool:
    """Whether the API at this URL can accept requests."""
    try:
        return httpx.get(f"{url}/readyz", timeout=6).is_success  # without a database a 503 comes within 4 s
    except httpx.TransportError:
        return False

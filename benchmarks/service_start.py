"""What all benchmarks with a service share: running `magnus up` and other programs, its client, its database."""

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from sqlalchemy import Connection

from cli.api_client import Client, Json
from cli.demo.demo_workload import DemoArrival, DemoRequest, send_all
from cli.hosting.child_process import ChildProgram, start, stop
from cli.hosting.process_commands import BIN
from cli.hosting.readiness import await_ready
from cli.hosting.service_files import RunningService, api_address, running_service
from models.connections.session import make_engine
from settings import read_settings

NO_RATE_LIMIT = {"MAGNUS_RATE_LIMIT": "1000000/minute"}  # any rate above those of the benchmarks works
READY_WITHIN_S = 300.0  # any value well above the seconds that a start takes works
STOP_WITHIN_S = 90.0  # any value well above the seconds that a stop takes works


@contextmanager
def running(program: ChildProgram, log: Path, wait: bool = True) -> Iterator[Popen[bytes]]:
    """Run a program until the context ends; with `wait` the context begins when the program is ready."""
    process = start(program, log)
    try:
        if wait:
            await_ready(program, process, log)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
        stop((program, process))


def free_port() -> int:
    """Find a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def up_program(state_dir: Path, *options: str, environment: Mapping[str, str] | None = None) -> ChildProgram:
    """Return the program `magnus up` for this directory, on free ports."""
    ports = ("--port", str(free_port()), "--flower-port", "0")
    return ChildProgram(
        "magnus up",
        (str(BIN / "magnus"), "up", "--json", "--state-dir", str(state_dir), *ports, *options),
        env={**NO_RATE_LIMIT, **(environment or {})},
        stop_signal=signal.SIGINT,  # Ctrl-C
        ready=lambda: running_service(state_dir) is not None,
        ready_within_s=READY_WITHIN_S,
        stop_within_s=STOP_WITHIN_S,
    )


def facts_of(state_dir: Path) -> RunningService:
    """Read the addresses of the service in this directory."""
    return RunningService(**json.loads((state_dir / "service.json").read_text()))


def addresses(database_url: str, redis_url: str) -> dict[str, str]:
    """Return the settings with which further processes use these servers."""
    return {"MAGNUS_DATABASE_URL": database_url, "MAGNUS_REDIS_URL": redis_url}


@contextmanager
def client_of_service(state_dir: Path) -> Iterator[Client]:
    """Open a client with the service's first key."""
    with Client(*api_address(read_settings(state_dir=state_dir))) as client:
        yield client


def submitted(
    client: Client, arrivals: list[DemoArrival], create: Callable[[Json], Json] | None = None
) -> dict[str, DemoRequest]:
    """Send the requests at their instants; returns them by id, or raises the error of one that was refused."""
    sent: dict[str, DemoRequest] = {}
    for submission in send_all(client, arrivals, threading.Event(), sent.__setitem__, create):
        submission.result()
    return sent


@contextmanager
def connection_to(database_url: str) -> Iterator[Connection]:
    """Open one connection to a service's database."""
    engine = make_engine(database_url, pool_size=1, name="benchmark")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def process_ids(state_dir: Path) -> dict[str, int]:
    """Return the ids of the service's processes by name; the supervisor updates their list when it restarts one."""
    return {entry["name"]: entry["pid"] for entry in json.loads((state_dir / "processes.json").read_text())}

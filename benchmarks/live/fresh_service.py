"""Starts a new service for one benchmark run: `magnus up` in its own directory, with our workers or a peer's."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cli.commands.demo_command import train_predictor
from cli.demo_workload import DemoArrival
from cli.hosting.child_process import ChildProgram, start, stop
from cli.hosting.embedded_postgres import create_database, embedded_postgres
from cli.hosting.process_commands import BIN, ONE_THREAD
from cli.hosting.readiness import await_ready
from cli.hosting.service_files import RunningService, running_service
from models.connections.schema_upgrade import upgrade
from models.planning.live_fleet import live_workers
from models.session import make_engine

PEERS = ("celery", "window", "generate_batch")


def peer_programs(
    name: str, workers: int, service: RunningService, model: str | None, kv_budget: str
) -> list[ChildProgram]:
    """The processes of a peer: one for each worker, and for `celery` one more that publishes."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = {"MAGNUS_DATABASE_URL": service.database_url, "MAGNUS_REDIS_URL": service.redis_url}
    environment |= {"MAGNUS_MODEL": model} if model else {}
    engine = environment | {"OMP_NUM_THREADS": str(threads), "MAGNUS_KV_BUDGET": kv_budget}
    python = (sys.executable, "-m")
    if name != "celery":
        return [
            ChildProgram(f"peer-{n}", (*python, "benchmarks.live.peer_processes", name), env=engine)
            for n in range(workers)
        ]
    celery = (*python, "celery", "-A", "benchmarks.live.peer_processes", "worker", "-Q", "peer", "-P", "solo")
    flags = ("--without-gossip", "--without-mingle", "-n")
    publisher = ChildProgram(
        "publisher", (*python, "benchmarks.live.peer_processes", "publish"), env=environment | ONE_THREAD
    )
    return [
        *(ChildProgram(f"peer-{n}", (*celery, *flags, f"peer-{n}@%h"), env=engine) for n in range(workers)),
        publisher,
    ]


NO_RATE_LIMIT = "1000000/minute"  # any rate above those of the benchmarks does
LONGEST_WAIT_S = "600"  # of one call; the most that can be set
MANY_CALLS = "1000"  # of one client at once; any number above those of the benchmarks does
READY_WITHIN_S = 300.0  # any value well above a start, which takes seconds, does
ALIVE_S = 10.0  # a worker that announced itself and still lives; any value well above its beats of 1.5 s does
STOP_WITHIN_S = 60.0  # any value well above a stop does


@dataclass(frozen=True)
class ServiceOptions:
    """What the services of one comparison have in common; `model` None is the bundled one.

    With `engines`, addresses of servers, those serve in place of workers of ours; with `paced`, a published machine,
    worker processes that keep its pace and compute nothing.
    """

    workers: int
    kv_budget: str
    model: str | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    engines: tuple[str, ...] = ()
    pretrained: bool = False  # the length predictor knows the toy applications before the first request
    paced: str | None = None

    def environment(self) -> dict[str, str]:
        """The settings that `magnus up` has no option for."""
        limits = {
            "MAGNUS_MAX_PROMPT_TOKENS": self.max_prompt_tokens,
            "MAGNUS_MAX_OUTPUT_TOKENS": self.max_output_tokens,
        }
        given = {name: str(limit) for name, limit in limits.items() if limit is not None}
        return {
            "MAGNUS_RATE_LIMIT": NO_RATE_LIMIT,
            "MAGNUS_TENANT_WAITING_CALLS": MANY_CALLS,
            "MAGNUS_WAIT_S": LONGEST_WAIT_S,
            **given,
        }


@contextmanager
def fresh_service(
    name: str, options: ServiceOptions, arrivals: list[DemoArrival], seed: int
) -> Iterator[tuple[RunningService, Path]]:
    """Run a service until the context ends: under the policy `name`, or served by the peer `name`.

    A peer has no length predictor.
    """
    is_peer = name in PEERS
    with tempfile.TemporaryDirectory(prefix="magnus-live-") as directory:
        state_dir = Path(directory)
        flags = ["--state-dir", directory, "--port", "0", "--flower-port", "0", "--kv-budget", options.kv_budget]
        flags += [] if options.engines else ["--workers", "0" if is_peer or options.paced else str(options.workers)]
        flags += [flag for url in options.engines for flag in ("--engine", url)]
        flags += [] if is_peer else ["--policy", name]
        flags += ["--model", options.model] if options.model else []
        up = ChildProgram(
            "magnus up",
            (str(BIN / "magnus"), "up", "--json", *flags),
            env=options.environment(),
            ready=lambda: running_service(state_dir) is not None,
            ready_within_s=READY_WITHIN_S,
            stop_within_s=STOP_WITHIN_S,
        )
        log = state_dir / "up.log"
        running = [(up, start(up, log))]
        try:
            await_ready(*running[0], log)
            service = RunningService(**json.loads((state_dir / "service.json").read_text()))
            if is_peer:
                for program in peer_programs(name, options.workers, service, options.model, options.kv_budget):
                    peer_log = state_dir / f"{program.name}.log"
                    running.append((program, start(program, peer_log)))
                    await_ready(*running[-1], peer_log)
                    add_process(state_dir, program.name, running[-1][1].pid)
            elif options.pretrained:
                train_predictor(state_dir, arrivals, seed)
            if options.paced is not None:
                program, paced_log = paced_workers(options.paced, options.workers, service), state_dir / "paced.log"
                running.append((program, start(program, paced_log)))
                await_ready(*running[-1], paced_log)
                add_process(state_dir, program.name, running[-1][1].pid)
            yield service, state_dir
        finally:
            stop(*reversed(running))


def paced_workers(machine: str, workers: int, service: RunningService) -> ChildProgram:
    """Worker processes on paced engines; ready once all of them have announced themselves."""
    command = (sys.executable, "-m", "benchmarks.scale.paced_worker", "--machine", machine, "--workers", str(workers))
    addresses = {"MAGNUS_DATABASE_URL": service.database_url, "MAGNUS_REDIS_URL": service.redis_url}

    database = make_engine(service.database_url, pool_size=1, name="benchmark")

    def all_announced() -> bool:
        with database.connect() as connection:
            return len(live_workers(connection, ALIVE_S)) == workers

    return ChildProgram(
        "paced-workers",
        command,
        env=ONE_THREAD | addresses,
        ready=all_announced,
        ready_within_s=READY_WITHIN_S,
        stop_within_s=STOP_WITHIN_S,
    )


def add_process(state_dir: Path, name: str, pid: int) -> None:
    """Have whoever reads the list of the service's processes find this one too."""
    path = state_dir / "processes.json"
    path.write_text(json.dumps([*json.loads(path.read_text()), {"name": name, "pid": pid, "command": ""}]))


OF_A_WORKER = 8  # connections at most (docs/operations.md)
OF_THE_REST = 100  # any value above the sum of all other processes, 30, does


@dataclass(frozen=True, kw_only=True)
class FleetOptions(ServiceOptions):
    """A service on a Postgres that runs already."""

    database_url: str

    def environment(self) -> dict[str, str]:
        """The settings that `magnus up` has no option for."""
        return {**super().environment(), "MAGNUS_DATABASE_URL": self.database_url}


@contextmanager
def roomy_postgres(directory: Path, workers: int) -> Iterator[tuple[str, int]]:
    """The embedded Postgres with so many connections, until the context ends: its URL and its process id."""
    server = embedded_postgres(directory)
    connections = ("-c", f"max_connections={OF_THE_REST + OF_A_WORKER * workers}")
    program, log = replace(server.program, command=(*server.program.command, *connections)), directory / "postgres.log"
    process = start(program, log)
    try:
        await_ready(program, process, log)
        create_database(server.url)
        upgrade(server.url)
        yield server.url, process.pid
    finally:
        stop((program, process))

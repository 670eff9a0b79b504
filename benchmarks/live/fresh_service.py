"""Starts a new service for one benchmark run: `magnus up` in its own directory, with our workers or a peer."""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import text

from benchmarks.scale.paced_engine import machine_of, request_key
from benchmarks.service_start import (
    READY_WITHIN_S,
    STOP_WITHIN_S,
    addresses,
    connection_to,
    facts_of,
    running,
    up_program,
)
from cli.demo.demo_service import train_predictor
from cli.hosting.child_process import ChildProgram
from cli.hosting.embedded_servers import create_database, embedded_postgres
from cli.hosting.process_commands import ONE_THREAD
from cli.hosting.service_access import VARIANTS
from cli.hosting.service_files import RunningService
from models.connections.session import make_engine
from models.planning.live_fleet import live_workers
from models.schema_upgrade import upgrade

PEERS = ("celery", "window", "generate_batch")
ORACLE = "oracle"  # this system is `fusion` with the true lengths as its predictions
ORACLE_PREDICTIONS = """
    create table true_tokens (texts text primary key, tokens int not null);
    create function predict_the_truth() returns trigger language plpgsql as $$
    declare known int := (
        select tokens from true_tokens where texts = md5(coalesce(new.instructions, '') || E'\\n' || new.input)
    );
    begin
        if known is not null and new.predicted_tokens is not null then
            new.predicted_tokens := known;
            new.predicted_upper_tokens := known;
        end if;
        return new;
    end $$;
    create trigger oracle before update on requests for each row execute function predict_the_truth();
"""


def peer_programs(
    name: str, workers: int, service: RunningService, model: str | None, kv_budget: str
) -> list[ChildProgram]:
    """Return the processes of a peer: one for each worker, and for `celery` one more that publishes."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = addresses(service.database_url, service.redis_url)
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


LONGEST_WAIT_S = "600"  # a call may wait this long, the most that can be set
ALIVE_S = 10.0  # a worker lives if its last heartbeat is younger; any value well above the interval of 1.5 s works
CONNECTIONS_OF_A_WORKER = 8  # the most database connections of a worker (docs/operations/scale.md)
CONNECTIONS_OF_THE_REST = 100  # for all other processes, which need 30; any value above that works


@dataclass(frozen=True)
class ServiceOptions:
    """The options that all services of a comparison have; without `model` they serve the bundled one.

    `engines` are addresses of servers that replace our engines. `paced` names a published machine, at whose pace the
    workers answer without computing. `database_url` is a Postgres that runs already. `predictor` and `encoder` are
    MAGNUS_PREDICTOR and MAGNUS_ENCODER.
    """

    workers: int
    kv_budget: str
    model: str | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    engines: tuple[str, ...] = ()
    paced: str | None = None
    headroom: float = 0.0  # the memory of a paced worker beyond Θ, as a share of Θ
    database_url: str | None = None
    predictor: str | None = None
    encoder: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the settings for which `magnus up` has no option."""
        given = {
            "MAGNUS_MAX_PROMPT_TOKENS": self.max_prompt_tokens,
            "MAGNUS_MAX_OUTPUT_TOKENS": self.max_output_tokens,
            "MAGNUS_DATABASE_URL": self.database_url,
            "MAGNUS_PREDICTOR": self.predictor,
            "MAGNUS_ENCODER": self.encoder,
            "MAGNUS_WAIT_S": LONGEST_WAIT_S,
        }
        return {name: str(value) for name, value in given.items() if value is not None}


def of_variant(name: str) -> tuple[str, dict[str, str]]:
    """Return the policy of the system with this name, and the further settings of its service."""
    return VARIANTS.get(name, ("fusion" if name == ORACLE else name, {}))


@contextmanager
def fresh_service(
    name: str,
    options: ServiceOptions,
    examples: Iterable[Mapping[str, Any]] = (),
    true_tokens: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> Iterator[tuple[RunningService, Path]]:
    """Run a service until the context ends: under the policy or variant `name`, or served by the peer `name`.

    The service's length predictor learns the examples first; a peer has no predictor. Paced workers and the ORACLE take
    the answers' lengths from `true_tokens`, which has them by instruction and input.
    """
    is_peer = name in PEERS
    policy, environment = of_variant(name)
    flags = ["--kv-budget", options.kv_budget]
    flags += [] if options.engines else ["--workers", "0" if is_peer or options.paced else str(options.workers)]
    flags += [flag for url in options.engines for flag in ("--engine", url)]
    flags += [] if is_peer else ["--policy", policy]
    flags += ["--model", options.model] if options.model else []
    with ExitStack() as stack:
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="magnus-live-")))
        up = up_program(state_dir, *flags, environment=options.environment() | environment)
        stack.enter_context(running(up, state_dir / "up.log"))
        service = facts_of(state_dir)
        further: list[ChildProgram] = []
        learned = list(examples)
        if is_peer:
            further = peer_programs(name, options.workers, service, options.model, options.kv_budget)
        elif learned:
            own = {"MAGNUS_MODEL": options.model} if options.model else {}
            train_predictor(state_dir, learned, options.environment() | environment | own)
        if name == ORACLE:
            predict_the_truth(service, true_tokens)
        if options.paced is not None:
            answers = state_dir / "answers.json"
            answers.write_text(json.dumps({request_key(*texts): tokens for texts, tokens in true_tokens.items()}))
            more = ("--headroom", str(options.headroom), "--answers", str(answers))
            further.append(
                paced_workers(machine_of(policy, options.paced), options.workers, service, options.model, more)
            )
        for program in further:
            process = stack.enter_context(running(program, state_dir / f"{program.name}.log"))
            add_process(state_dir, program.name, process.pid)
        yield service, state_dir


def predict_the_truth(service: RunningService, true_tokens: Mapping[tuple[str, str], int]) -> None:
    """Let the database replace each prediction by the answer's true length, where it is known."""
    rows = [{"texts": "\n".join(texts), "tokens": tokens} for texts, tokens in true_tokens.items()]
    engine = make_engine(service.database_url, pool_size=1, name="benchmark")
    with engine.begin() as connection:
        connection.exec_driver_sql(ORACLE_PREDICTIONS)
        connection.execute(text("insert into true_tokens values (md5(:texts), :tokens)"), rows)
    engine.dispose()


def paced_workers(
    machine: str, workers: int, service: RunningService, model: str | None = None, more: tuple[str, ...] = ()
) -> ChildProgram:
    """Return the program that runs paced workers, with the options `more`; it is ready when all have registered."""
    command = (sys.executable, "-m", "benchmarks.scale.paced_worker", "--machine", machine, "--workers", str(workers))

    def all_announced() -> bool:
        with connection_to(service.database_url) as connection:
            return len(live_workers(connection, ALIVE_S)) == workers

    return ChildProgram(
        "paced-workers",
        (*command, *more),
        env=ONE_THREAD
        | addresses(service.database_url, service.redis_url)
        | ({"MAGNUS_MODEL": model} if model else {}),
        ready=all_announced,
        ready_within_s=READY_WITHIN_S,
        stop_within_s=STOP_WITHIN_S,
    )


def add_process(state_dir: Path, name: str, pid: int) -> None:
    """Add a process to the list of the service's processes."""
    path = state_dir / "processes.json"
    path.write_text(json.dumps([*json.loads(path.read_text()), {"name": name, "pid": pid, "command": ""}]))


@contextmanager
def roomy_postgres(workers: int) -> Iterator[tuple[str, int]]:
    """Run the embedded Postgres with connections for a large fleet; yields its URL and its process id.

    The 500 connections that it has by default are enough for about a hundred workers.
    """
    connections = CONNECTIONS_OF_THE_REST + CONNECTIONS_OF_A_WORKER * workers
    with tempfile.TemporaryDirectory(prefix="magnus-postgres-") as directory:
        Path(directory).chmod(0o755)  # Postgres runs as another user if we are root
        server = embedded_postgres(Path(directory) / "postgres")
        program = replace(server.program, command=(*server.program.command, "-c", f"max_connections={connections}"))
        with running(program, Path(directory) / "postgres.log") as process:
            create_database(server.url)
            upgrade(server.url)
            yield server.url, process.pid

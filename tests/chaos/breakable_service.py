"""A whole service except the web: its own Postgres and broker, real processes, each started and killed by the test."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import Engine

from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram, start, stop
from cli.hosting.embedded_servers import create_database, embedded_broker, embedded_postgres
from cli.hosting.readiness import await_ready
from models.connections.session import make_engine
from models.schema_upgrade import upgrade
from tests.integration.database_stage import MODEL, Stage, eventually

ENDINGS = """
    create table endings (id text, status text);
    create function note_ending() returns trigger language plpgsql as $$ begin
        insert into endings values (new.id, new.status); return new; end $$;
    create trigger endings after update on requests for each row
        when (old.finished_at is null and new.finished_at is not null or old.output_text <> new.output_text)
        execute function note_ending();
"""


@dataclass
class Service:
    """Processes by name; each can be killed, stopped and started again."""

    directory: Path
    redis_url: str
    stage: Stage
    environment: dict[str, str]
    programs: dict[str, ChildProgram]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        """Start these processes and wait until they are ready."""
        for name in names:
            program = self.programs[name]
            self.running[name] = start(program, self.directory / f"{name}.log")
        for name in names:
            await_ready(self.programs[name], self.running[name], self.directory / f"{name}.log")

    def kill(self, name: str) -> None:
        """SIGKILL, as the kernel does when memory runs out, to the process and all that it started."""
        process = self.running[name]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def crash_postgres(self) -> None:
        """End every session at once and flush nothing: the next start recovers from the write-ahead log."""
        process = self.running["postgres"]
        process.send_signal(signal.SIGQUIT)
        process.wait()
        self.stage.database.dispose()  # the crash cut the test's own connections as well

    def freeze(self, name: str) -> None:
        """Stop a process: it exists but answers nothing."""
        os.killpg(self.running[name].pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Resume a frozen process."""
        os.killpg(self.running[name].pid, signal.SIGCONT)

    def wipe_broker(self) -> None:
        """Delete everything in the broker (FLUSHALL)."""
        with redis.Redis.from_url(self.redis_url) as client:
            client.flushall()

    def submit(self, prefix: str, count: int, limit: int = 800, **columns: Any) -> list[str]:
        """Submit requests of different lengths that are not predicted yet."""
        return [
            self.stage.request(
                f"{prefix}{n:03}",
                input="abcdefghij "[: 1 + n % 11] * (1 + n % 5),
                limit_tokens=limit // 2 + (37 * n) % limit,
                predicted_tokens=None,
                predicted_upper_tokens=None,
                **columns,
            )
            for n in range(count)
        ]

    def worker_in_the_middle_of_a_batch(self) -> str:
        """Wait until some worker's batch has begun and has not ended; returns the worker's name."""
        ((name,),) = eventually(
            lambda: self.stage.sql(
                """select worker from batches where status = 'running' and started_at is not null
                and progress_tokens between 1 and 300 limit 1"""
            ),
            within_s=90.0,
        )
        return str(name)

    def all_answered_once(self, ids: list[str], within_s: float = 150.0) -> None:
        """Wait until every request has its answer; each must be whole, and none may have been answered twice."""
        eventually(
            lambda: not self.stage.sql("select 1 from requests where finished_at is null and id = any(:i)", i=ids),
            within_s,
        )
        rows = self.stage.sql(
            "select status, output_tokens = limit_tokens, count(*) from requests where id = any(:i) group by 1, 2",
            i=ids,
        )
        assert [tuple(row) for row in rows] == [("incomplete", True, len(ids))]
        assert self.stage.sql("select count(*), count(distinct id) from endings where id = any(:i)", i=ids) == [
            (len(ids), len(ids))
        ]


@contextmanager
def running_service(directory: Path, model: Path, workers: int = 2) -> Iterator[Service]:
    """Everything but web, trainer and Flower, stopped at the end."""
    servers = {"postgres": embedded_postgres(directory / "postgres"), "valkey": embedded_broker(directory / "valkey")}
    database_url = servers["postgres"].url
    environment = {
        "MAGNUS_DATABASE_URL": database_url,
        "MAGNUS_REDIS_URL": servers["valkey"].url,
        "MAGNUS_MODEL": str(model),
        "MAGNUS_MODEL_NAME": MODEL,
        "MAGNUS_LEASE_S": "3",
        "MAGNUS_HEARTBEAT_S": "0.1",  # the small model is fast: a batch is in the middle for half a second
        "MAGNUS_PARAMETERS": "loops=off",  # its answers are nothing but loops, and as long as asked
        "MAGNUS_KV_BUDGET": "1MiB",
        "MAGNUS_MAX_PROMPT_TOKENS": "100",
        "MAGNUS_MAX_OUTPUT_TOKENS": "1200",
    }
    database: Engine = make_engine(database_url)
    service = Service(directory, servers["valkey"].url, Stage(database), environment, {})

    def worker_ready(name: str) -> bool:
        return bool(
            service.stage.sql(
                """select 1 from workers where name = :name and stopped_at is null
                and heartbeat_at > clock_timestamp() - interval '1 s'""",
                name=name,
            )
        )

    names = [f"w{n}" for n in range(1, workers + 1)]
    plain = [
        process_commands.beat(),
        process_commands.celery_worker("planner"),
        process_commands.celery_worker("predictor"),
        process_commands.celery_worker("chores"),
    ]
    gpu = [process_commands.worker(name, "cpu", 1, partial(worker_ready, name)) for name in names]
    service.programs = {name: server.program for name, server in servers.items()} | {
        program.name: replace(program, env={**program.env, **environment}) for program in [*plain, *gpu]
    }
    try:
        service.start("postgres", "valkey")
        create_database(database_url)
        upgrade(database_url)
        service.stage.sql(ENDINGS)
        service.start("beat", "planner", "predictor", "chores", *names)
        yield service
    finally:
        database.dispose()
        outer = [name for name in service.running if name not in servers]
        stop(*((service.programs[name], service.running[name]) for name in outer))
        stop(*((service.programs[name], service.running[name]) for name in servers if name in service.running))

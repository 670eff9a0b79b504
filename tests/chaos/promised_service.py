"""A whole `magnus up` in a directory of its own: its processes by kind, signals to them, and its database.

Nothing here uses the inside of the product: processes come from the process tree, events from SQL.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Any

import psutil
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from benchmarks.harness import until
from benchmarks.service_start import facts_of, running, up_program
from cli.hosting.service_files import RunningService
from models.connections.session import make_engine
from tests.chaos.exactly_once import WATCH

WORKERS = 2


@dataclass
class PromisedService:
    """A running service: its addresses, its processes and its database."""

    state_dir: Path
    key: str
    facts: RunningService
    up: Popen[bytes] | None  # None: its processes have no supervisor
    database: Engine
    random: Random = field(default_factory=lambda: Random(13))

    @property
    def url(self) -> str:
        """The address of the API."""
        return self.facts.url

    def processes(self) -> dict[str, psutil.Process]:
        """The living processes by kind: the supervisor's children, one web worker, one Postgres session."""
        found: dict[str, psutil.Process] = {}
        for entry in json.loads((self.state_dir / "processes.json").read_text()):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(entry["pid"])
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                found[entry["name"]] = process
                if children := process.children():
                    if entry["name"] == "web":
                        found["web worker"] = self.random.choice(children)
                    if entry["name"] == "postgres":
                        sessions = [child for child in children if " idle" in " ".join(child.cmdline())]
                        found |= {"postgres session": self.random.choice(sessions)} if sessions else {}
        return found

    def kinds_in_turn(self) -> Iterator[str]:
        """Yield every kind of process without end, each round in another order."""
        kinds = sorted(self.processes())
        while True:
            self.random.shuffle(kinds)
            yield from kinds

    def signal(self, kind: str, number: signal.Signals) -> psutil.Process | None:
        """Send a signal to a process of this kind; None if none lives at this moment."""
        process = self.processes().get(kind)
        with contextlib.suppress(psutil.NoSuchProcess):
            if process is not None:
                process.send_signal(number)
        return process

    def replaced(self, kind: str, process: psutil.Process, within_s: float = 60.0) -> bool:
        """Wait for another process of this kind; returns whether it lives in time."""

        def another() -> bool:
            now = self.processes().get(kind)
            return now is not None and now.pid != process.pid

        return until(another, within_s)

    def thaw(self) -> None:
        """Send SIGCONT to all frozen processes."""
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(self.up.pid if self.up else os.getpid())
            for process in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    if process.status() == psutil.STATUS_STOPPED:
                        process.send_signal(signal.SIGCONT)

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Run and commit a statement; returns its rows. Retries for a minute while Postgres is unavailable."""
        attempts = Retrying(
            retry=retry_if_exception_type((DBAPIError, PoolTimeout)),
            stop=stop_after_delay(60.0),
            wait=wait_fixed(0.1),
            before_sleep=lambda _: self.database.dispose(),
            reraise=True,
        )
        for attempt in attempts:
            with attempt, self.database.begin() as connection:
                result = connection.execute(text(statement), parameters)
                rows = list(result) if result.returns_rows else []
        return rows

    def value(self, statement: str, **parameters: Any) -> Any:
        """Run a statement; returns the first column of the first row, or None without rows."""
        rows = self.sql(statement, **parameters)
        return rows[0][0] if rows else None

    def waiting(self) -> int:
        """The number of requests without an answer."""
        return int(self.value("select count(*) from requests where finished_at is null"))

    def answered_within(self, seconds: float) -> float | None:
        """Wait until all requests are answered; returns the seconds, or None if it takes longer."""
        began = time.monotonic()
        return time.monotonic() - began if until(lambda: not self.waiting(), seconds) else None

    def rate(self, since: float, until: float) -> float:
        """The rate of answers between two instants of this host's clock."""
        counted = "select count(*) from chaos_endings where at >= to_timestamp(:since) and at < to_timestamp(:until)"
        return float(self.value(counted, since=since, until=until)) / (until - since)

    def rate_for(self, seconds: float) -> float:
        """Wait for these seconds; returns the rate of answers in them."""
        since = time.time()
        time.sleep(seconds)
        return self.rate(since, time.time())


@contextmanager
def promised_service(
    state_dir: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[PromisedService]:
    """Run a service until the context ends as by Ctrl-C, with triggers that record writes to finished requests."""
    program = up_program(state_dir, "--workers", str(WORKERS), *options, environment=environment)
    with running(program, state_dir.with_name(state_dir.name + ".up.log")) as process:
        facts = facts_of(state_dir)
        database = make_engine(facts.database_url, pool_size=4, name="chaos")
        service = PromisedService(state_dir, (state_dir / "api-key").read_text().strip(), facts, process, database)
        service.sql(WATCH)
        try:
            yield service
        finally:
            service.thaw()
            database.dispose()


def left_behind(state_dir: Path) -> list[str]:
    """The commands of other processes whose command line or environment contains this directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            values = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(state_dir) in value for value in values):
                found.append(" ".join(process.cmdline()[:4]))
    return found

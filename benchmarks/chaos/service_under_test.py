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

from benchmarks.chaos.exactly_once import WATCH
from benchmarks.harness import until
from benchmarks.service_start import facts_of, running, up_program
from cli.hosting.service_files import RunningService
from models.session import make_engine

WORKERS = 2


@dataclass
class ServiceUnderTest:
    """A running service: its addresses, its processes and its database."""

    state_dir: Path
    url: str
    key: str
    facts: RunningService
    up: Popen[bytes] | None  # None: its processes have no supervisor
    database: Engine
    random: Random = field(default_factory=lambda: Random(13))

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

    def thaw(self) -> list[str]:
        """Send SIGCONT to all frozen processes; returns their names."""
        frozen = []
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    frozen.append(process.name())
                    process.send_signal(signal.SIGCONT)
        return frozen

    def tree(self) -> list[psutil.Process]:
        """The supervisor, or this process if there is none, with all descendants."""
        try:
            parent = psutil.Process(self.up.pid if self.up else os.getpid())
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Run and commit a statement; returns its rows. Retries for a minute while Postgres is unavailable."""
        for attempt in self._attempts():
            with attempt, self.database.begin() as connection:
                result = connection.execute(text(statement), parameters)
                rows = list(result) if result.returns_rows else []
        return rows

    def _attempts(self) -> Retrying:
        return Retrying(
            retry=retry_if_exception_type((DBAPIError, PoolTimeout)),
            stop=stop_after_delay(60.0),
            wait=wait_fixed(0.1),
            before_sleep=lambda _: self.database.dispose(),
            reraise=True,
        )

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
        count = self.value(
            "select count(*) from chaos_endings where at >= to_timestamp(:since) and at < to_timestamp(:until)",
            since=since,
            until=until,
        )
        return float(count) / (until - since)

    def rate_for(self, seconds: float) -> float:
        """Wait for these seconds; returns the rate of answers in them."""
        since = time.time()
        time.sleep(seconds)
        return self.rate(since, time.time())


@contextmanager
def service_under_test(
    state_dir: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[ServiceUnderTest]:
    """Run a service until the context ends as by Ctrl-C, with triggers that record writes to finished requests."""
    options = options if "--workers" in options else ("--workers", str(WORKERS), *options)
    program = up_program(state_dir, *options, environment=environment)
    with running(program, state_dir.with_name(state_dir.name + ".up.log")) as process:
        facts = facts_of(state_dir)
        database = make_engine(facts.database_url, pool_size=4, name="chaos")
        key = (state_dir / "api-key").read_text().strip()
        service = ServiceUnderTest(state_dir, facts.url, key, facts, process, database)
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

"""A whole `magnus up` in a temporary directory for one figure of `benchmarks.api`, and the figure's results.

With `paced`, the workers compute nothing and answer at a published GPU's pace, so that the service has the cores for
itself, as on a host whose workers run on GPUs.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine

from benchmarks.harness import Json, Row
from benchmarks.live.fresh_service import paced_workers
from benchmarks.service_start import facts_of, process_ids, running, up_program
from cli.api_client import Client
from cli.hosting.service_files import RunningService
from models.connections.session import make_engine

MACHINE = "v100"  # paced workers answer at this machine's pace, the slower one, so that calls wait longer


@dataclass(frozen=True)
class MeasuredService:
    """A running service: its address, the key of its first tenant, its database."""

    state_dir: Path
    key: str
    facts: RunningService
    database: Engine

    @property
    def url(self) -> str:
        """Return the address of the API."""
        return self.facts.url

    def processes(self, name: str) -> list[psutil.Process]:
        """Return the process of this name with all of its descendants."""
        parents = [psutil.Process(pid) for own, pid in process_ids(self.state_dir).items() if own == name]
        return [process for parent in parents for process in (parent, *parent.children(recursive=True))]

    def memory_mib(self, name: str = "web") -> float:
        """Return the present resident memory of the processes of this name, in MiB."""
        return sum(process.memory_info().rss for process in self.processes(name)) / 2**20

    def cpu_s(self, name: str) -> float:
        """Return the CPU seconds that the processes of this name have used so far."""
        times = [process.cpu_times() for process in self.processes(name)]
        return float(sum(one.user + one.system for one in times))

    def forget_peak(self) -> None:
        """Reset the peak of the web process's memory; Linux only."""
        for process in self.processes("web"):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        """Return the peak of the web process's memory since `forget_peak`, in MiB, from the kernel; Linux only."""
        return sum(_peak_bytes(process.pid) for process in self.processes("web")) / 2**20


def model_of(service: MeasuredService) -> str:
    """Ask the service for its model; returns the model's name."""
    with Client(service.url, service.key) as client:
        return client.model()


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@contextmanager
def measured_service(
    *options: str, paced: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[MeasuredService]:
    """Run a service with default settings except for the given ones, until the context ends."""
    options = ("--workers", "0", *options) if paced else options
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="magnus-api-", ignore_cleanup_errors=True))
        state_dir = Path(directory) / "state"
        stack.enter_context(
            running(up_program(state_dir, *options, environment=environment), Path(directory) / "up.log")
        )
        facts = facts_of(state_dir)
        if paced:
            stack.enter_context(running(paced_workers(MACHINE, paced, facts), Path(directory) / "paced.log"))
        database = make_engine(facts.database_url, pool_size=2, name="benchmark")
        stack.callback(database.dispose)
        yield MeasuredService(state_dir, (state_dir / "api-key").read_text().strip(), facts, database)


# Starts the service that an experiment measures; the service runs until the context ends.
StartService = Callable[[], AbstractContextManager[MeasuredService]]


@dataclass
class MeasuredFigure:
    """The rows of a figure's table, and the values that the JSON keeps beside them."""

    rows: list[Row] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def below(self, what: str, bound: float, measured: float, unit: str, more: str = "") -> None:
        """Add a row that holds if `measured` is at most the bound."""
        self.holds(what, f"at most {bound:g} {unit}", f"{measured:.3g} {unit}{more}", measured <= bound)

    def holds(self, what: str, bound: str, measured: str, ok: bool) -> None:
        """Add a row that holds if `ok`."""
        self.rows.append(Row(what, bound, measured, bool(ok)))  # JSON cannot encode numpy's bool

    def as_run(self) -> Json:
        """Return the rows and the figures as the result of an experiment's run."""
        return {"rows": self.rows, "figures": self.figures}

"""A Postgres with connections for a large fleet: the 500 of the embedded one hold a hundred workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.live.fresh_service import ServiceOptions
from cli.hosting.child_process import start, stop
from cli.hosting.embedded_postgres import create_database, embedded_postgres
from cli.hosting.readiness import await_ready
from models.connections.schema_upgrade import upgrade

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

"""An embedded Postgres that does not wait for the disk: faster, but a power failure loses data."""

from dataclasses import replace
from pathlib import Path

from cli.hosting.embedded_servers import EmbeddedServer, embedded_postgres

NOT_DURABLE = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")


def quick_postgres(directory: Path) -> EmbeddedServer:
    """Prepares a Postgres in `directory` for tests."""
    server = embedded_postgres(directory)
    return replace(server, program=replace(server.program, command=(*server.program.command, *NOT_DURABLE)))

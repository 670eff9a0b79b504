"""Postgres and broker that belong to the benchmark, so that proxies can stand before them or hosts share them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

from cli.hosting.child_process import start, stop
from cli.hosting.embedded_broker import embedded_broker
from cli.hosting.embedded_postgres import create_database, embedded_postgres
from cli.hosting.readiness import await_ready


@dataclass(frozen=True)
class OwnServers:
    """Where they answer."""

    database_url: str
    postgres_socket: str
    redis_url: str
    redis_port: int

    def behind(self, postgres_port: int, redis_port: int) -> dict[str, str]:
        """Settings of a service that reaches both through proxies on these ports."""
        redis = urlsplit(self.redis_url)
        return {
            "MAGNUS_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{postgres_port}/magnus",
            "MAGNUS_REDIS_URL": f"redis://:{redis.password}@127.0.0.1:{redis_port}{redis.path}",
        }


@contextmanager
def own_servers(directory: Path) -> Iterator[OwnServers]:
    """Start both with an empty database, stop them at the end."""
    servers = [embedded_postgres(directory / "postgres"), embedded_broker(directory / "valkey")]
    running = []
    try:
        for server in servers:
            log = directory / f"{server.program.name}.log"
            running.append((server.program, start(server.program, log)))
            await_ready(*running[-1], log)
        postgres, broker = (server.url for server in servers)
        create_database(postgres)
        socket = f"{conninfo_to_dict(postgres)['host']}/.s.PGSQL.5432"
        yield OwnServers(postgres, socket, broker, urlsplit(broker).port or 0)
    finally:
        stop(*reversed(running))

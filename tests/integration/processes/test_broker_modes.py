"""Kinds of Redis that cannot be the broker are refused by name, and a Unix socket can."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from cli.checks.startup_checks import broker_problem
from cli.hosting.embedded_servers import valkey_binary
from tests.integration.database_stage import eventually


@contextmanager
def server(directory: Path, *options: str) -> Iterator[str]:
    """Starts a server on a socket in this directory; yields its URL."""
    url = f"unix://{directory / 'socket'}"
    command = [str(valkey_binary()), *options, "--port", "0", "--unixsocket", str(directory / "socket")]
    with subprocess.Popen([*command, "--dir", str(directory)], stdout=subprocess.DEVNULL) as running:
        try:
            eventually(lambda: answers(url))
            yield url
        finally:
            running.terminate()


def answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_a_server_on_a_unix_socket_is_a_broker(servers_dir: Path) -> None:
    with server(servers_dir) as url:
        assert broker_problem(url) is None


def test_a_cluster_is_refused_by_name(servers_dir: Path) -> None:
    with server(servers_dir, "--cluster-enabled", "yes", "--cluster-port", "17999", "--save", "") as url:
        assert "Redis Cluster, which is not supported" in str(broker_problem(url))


def test_a_sentinel_is_refused_by_name(servers_dir: Path) -> None:
    (servers_dir / "sentinel.conf").write_text("")
    with server(servers_dir, str(servers_dir / "sentinel.conf"), "--sentinel") as url:
        assert "Redis Sentinel" in str(broker_problem(url))


def test_a_server_that_takes_no_writes_is_refused_with_its_words(servers_dir: Path) -> None:
    with server(servers_dir, "--min-replicas-to-write", "1") as url:
        assert "the broker takes no writes: NOREPLICAS" in str(broker_problem(url))

"""The component redis-primary: connections go to the server that is the primary, also once another one is."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from cli.checks.startup_checks import bind, broker_problem
from cli.hosting.embedded_servers import valkey_binary
from tests.e2e.whole_service import eventually
from tests.kubernetes.manifests import MANIFESTS

PASSWORD = "of-the-cluster"
CONFIGURATION = (MANIFESTS / "components" / "redis-primary" / "haproxy.cfg").read_text()

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def url(port: int) -> str:
    return f"redis://:{PASSWORD}@127.0.0.1:{port}/0"


def answers(port: int) -> bool:
    try:
        with redis.Redis.from_url(url(port), retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def server(directory: Path, port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server that asks for the password and gives it to a primary."""
    directory.mkdir(exist_ok=True)
    password = ("--requirepass", PASSWORD, "--primaryauth", PASSWORD)
    command = [str(valkey_binary()), "--port", str(port), "--dir", str(directory), "--save", "", *password, *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        try:
            eventually(lambda: answers(port))
            yield running
        finally:
            running.kill()


@contextmanager
def proxy(directory: Path, port: int, servers: list[int]) -> Iterator[None]:
    """HAProxy with the component's configuration, for servers at these ports."""
    if shutil.which("haproxy") is None:
        install = "apt-get update && apt-get install -y --no-install-recommends haproxy"
        subprocess.run(["bash", "-c", install], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    haproxy = shutil.which("haproxy")
    assert haproxy, "install haproxy"
    kept = re.sub(r"^    server .*\n", "", CONFIGURATION, flags=re.MULTILINE).replace("bind :6379", f"bind :{port}")
    lines = "".join(f"    server at-{one} 127.0.0.1:{one}\n" for one in servers)
    (directory / "haproxy.cfg").write_text(kept + lines)
    command = [haproxy, "-W", "-db", "-f", str(directory / "haproxy.cfg")]
    with subprocess.Popen(command, env={"REDIS_PASSWORD": PASSWORD}, stderr=subprocess.DEVNULL) as running:
        try:
            yield
        finally:
            running.terminate()


def test_after_a_failover_connections_go_to_the_new_primary_alone(tmp_path: Path) -> None:
    first, second, before = (bind("127.0.0.1", 0) for _ in range(3))
    with ExitStack() as running:
        primary = running.enter_context(server(tmp_path / "first", first))
        running.enter_context(server(tmp_path / "second", second, "--replicaof", f"127.0.0.1 {first}"))
        running.enter_context(proxy(tmp_path, before, [first, second]))
        eventually(lambda: broker_problem(url(before)) is None)
        primary.kill()
        primary.wait()
        with redis.Redis.from_url(url(second)) as client:
            client.replicaof("NO", "ONE")  # as Sentinel does
        eventually(lambda: broker_problem(url(before)) is None)
        running.enter_context(server(tmp_path / "first", first, "--replicaof", f"127.0.0.1 {second}"))
        eventually(lambda: {broker_problem(url(before)) for _ in range(20)} == {None})

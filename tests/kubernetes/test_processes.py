"""The pods of the manifests start as processes of this host, serve a request, and go as a roll-out lets them go."""

import os
import re
import signal
import socket
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from tests.conftest import with_database
from tests.e2e.whole_service import eventually
from tests.kubernetes.manifests import Object, pods, with_components
from tests.kubernetes.pod_processes import Pod

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The service without a GPU, with KEDA's object."""
    return with_components(tmp_path_factory.mktemp("overlay"), "cpu", "keda")


@pytest.fixture(scope="module")
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """A database without tables."""
    name = f"cluster_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        yield with_database(postgres_url, name)
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture(scope="module")
def cluster(
    objects: list[Object], empty_database_url: str, redis_server_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Pod]]:
    """A pod of each Deployment and Job, none of them started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (settings,) = [one["data"] for one in objects if one["kind"] == "ConfigMap"]
    secret = {
        "MAGNUS_DATABASE_URL": empty_database_url,
        "MAGNUS_REDIS_URL": redis_server_url,
        "MAGNUS_DASHBOARD_PASSWORD": "a password of the cluster",
    }
    directory = tmp_path_factory.mktemp("pods")
    found = {
        name: Pod(f"{name}-0", spec, settings | secret, directory / name, port) for name, spec in pods(objects).items()
    }
    try:
        yield found
    finally:
        for pod in found.values():
            pod.kill()


def test_the_pods_serve_are_watched_and_go_in_time(cluster: dict[str, Pod], objects: list[Object]) -> None:
    migrate, web, worker = (cluster[f"magnus-{name}"] for name in ("migrate", "web", "worker"))
    migrate.start()
    assert migrate.process is not None
    assert migrate.process.wait(120) == 0, migrate.said()
    running = [pod for pod in cluster.values() if pod is not migrate]
    for pod in running:
        pod.start()
    for pod in running:
        pod.await_started()
    answers(web, web.run("magnus", "keys", "create", "--name", "first"))
    says_how_many_workers(web, objects)
    a_frozen_process_is_found(cluster["magnus-planner"])
    a_worker_is_replaced(cluster, worker)
    for pod in [pod for pod in cluster.values() if pod not in (migrate, worker)]:
        assert pod.delete() == 0, pod.said()


def answers(web: Pod, key: str) -> None:
    """A request is answered, and nothing is missing."""
    at = f"http://127.0.0.1:{web.port}"
    eventually(lambda: httpx.get(f"{at}/readyz", timeout=30).json()["missing"] == [])
    body = {"model": "bundled", "instructions": "Write each word twice.", "input": "apple river"}
    answer = httpx.post(f"{at}/v1/responses", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=90)
    assert answer.json()["output"][0]["content"][0]["text"] == "apple apple river river"


def says_how_many_workers(web: Pod, objects: list[Object]) -> None:
    """What KEDA asks Prometheus for is in /metrics, of the model by that name."""
    (scaled,) = [one for one in objects if one["kind"] == "ScaledObject"]
    asked = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    figures = [re.fullmatch(r"max\((.*)\)", query)[1] for query in asked]  # type: ignore[index]
    eventually(
        lambda: all(one in httpx.get(f"http://127.0.0.1:{web.port}/metrics", timeout=30).text for one in figures)
    )


def a_frozen_process_is_found(pod: Pod) -> None:
    """The pulse of a process that is stopped grows old; once it goes on, the probe passes again."""
    assert pod.process is not None
    pod.process.send_signal(signal.SIGSTOP)
    pulse = pod.directory / "pulse"
    os.utime(pulse, (pulse.stat().st_mtime - 61, pulse.stat().st_mtime - 61))
    assert not pod.passes("livenessProbe")
    pod.process.send_signal(signal.SIGCONT)
    eventually(lambda: pod.passes("livenessProbe"))


def a_worker_is_replaced(cluster: dict[str, Pod], old: Pod) -> None:
    """The next worker is up before the old one goes, which is gone within its grace and counts as up no more."""
    name = f"{old.name}-next"
    new = cluster[name] = Pod(name, old.spec, old.given, old.directory.with_name(name), old.port)
    new.start()
    new.await_started()
    assert old.delete() == 0, old.said()
    eventually(lambda: not old.passes("startupProbe"))
    assert new.passes("startupProbe")

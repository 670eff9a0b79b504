"""Faults of a running service, each a context: it holds inside, and the service is whole again after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import monotonic, sleep

import psutil
import psycopg
import redis

from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram, stop
from cli.hosting.embedded_servers import embedded_broker
from cli.hosting.readiness import worker_is_alive
from models.connections.session import make_sessions
from models.operations import operator_jobs, operator_overview
from models.schema_upgrade import downgrade, upgrade
from tests.chaos.breakable_service import Service
from tests.integration.database_stage import MODEL, eventually
from tests.integration.stub_engine_server import StubServer


@contextmanager
def full_broker(service: Service) -> Iterator[None]:
    """A broker whose memory is used up."""
    with redis.Redis.from_url(service.redis_url) as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def dead(service: Service, *names: str) -> Iterator[None]:
    """Processes that were killed."""
    for name in names:
        service.kill(name)
    try:
        yield
    finally:
        service.start(*names)


@contextmanager
def frozen(service: Service, *names: str) -> Iterator[None]:
    """Processes that were stopped; those that ended themselves meanwhile are started again."""
    for name in names:
        service.freeze(name)
    try:
        yield
    finally:
        for name in names:
            if service.running[name].poll() is None:
                service.thaw(name)
            else:
                service.start(name)


@contextmanager
def paused(service: Service) -> Iterator[None]:
    """Planning is paused by an operator."""
    sessions = make_sessions(service.stage.database)
    with sessions() as session:
        operator_overview.set_paused(session, True)
    try:
        yield
    finally:
        with sessions() as session:
            operator_overview.set_paused(session, False)


@contextmanager
def drained(service: Service) -> Iterator[None]:
    """An operator drains every worker."""
    service.stage.sql("update workers set drained_at = clock_timestamp()")
    try:
        yield
    finally:
        service.stage.sql("update workers set drained_at = null")


@contextmanager
def refused_batches(service: Service, message: str, condition: str) -> Iterator[None]:
    """A database that refuses each batch with this error, so that every step of the planner fails."""
    service.stage.sql(
        f"""create function refuse() returns trigger language plpgsql as $$
        begin raise exception using message = '{message}', errcode = '{condition}'; end $$"""
    )
    service.stage.sql("create trigger refuse before insert on batches for each row execute function refuse()")
    try:
        yield
    finally:
        service.stage.sql("drop function refuse cascade")


@contextmanager
def unserved(service: Service) -> Iterator[None]:
    """Requests of a model without a worker; at the end one is moved to the served model, and one is deleted."""
    for name in ("moved", "deleted"):
        service.stage.request(name, model="gone")
    try:
        yield
    finally:
        service.stage.sql("delete from requests where id = 'deleted'")
        with make_sessions(service.stage.database).begin() as session:
            assert operator_jobs.move_waiting(session, "gone", MODEL) == 1


@contextmanager
def frozen_postgres(service: Service) -> Iterator[None]:
    """Postgres with all of its sessions, each of which leads a group of processes of its own, is stopped."""
    server = psutil.Process(service.running["postgres"].pid)
    family = [server, *server.children(recursive=True)]
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            process.resume()


@contextmanager
def read_only_postgres(service: Service) -> Iterator[None]:
    """Postgres takes no writes, like a primary that has become a stand-by."""

    def order(*statements: str) -> None:
        url = service.environment["MAGNUS_DATABASE_URL"]
        with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            for statement in statements:
                connection.execute(statement)

    order("alter system set default_transaction_read_only = on", "select pg_reload_conf()")
    try:
        yield
    finally:
        order("alter system reset default_transaction_read_only", "select pg_reload_conf()")


@contextmanager
def old_schema(service: Service) -> Iterator[None]:
    """An older schema than this version needs, as an operator leaves it who forgets `magnus migrate`."""
    url = service.environment["MAGNUS_DATABASE_URL"]
    downgrade(url, "0038")  # the next one brought a column that each heartbeat writes
    try:
        yield
    finally:
        upgrade(url)


@contextmanager
def further_worker(service: Service, program: ChildProgram, **environment: str) -> Iterator[None]:
    """One more worker with other settings than the rest, which is gone at the end."""
    name = program.name
    service.programs[name] = replace(program, env={**program.env, **service.environment, **environment})
    service.start(name)
    try:
        yield
    finally:
        stop((service.programs.pop(name), service.running.pop(name)))
        service.stage.sql("delete from workers where name = :name", name=name)


@contextmanager
def engine_away(service: Service) -> Iterator[None]:
    """A worker in front of a server of others, which has ended; one request is for its model."""
    server = StubServer()
    ready = partial(worker_is_alive, service.stage.database, "far")
    program = process_commands.remote_worker("far", server.url, ready)
    with further_worker(service, program, MAGNUS_MODEL_NAME=server.model):
        server.die()
        asked = service.stage.request("far", model=server.model)
        try:
            yield
        finally:
            again = StubServer(server.server_port)
            answered = "select 1 from requests where id = :id and status = 'completed'"
            eventually(lambda: service.stage.sql(answered, id=asked))
            again.die()


def submit_until_sent(service: Service, worker: str) -> None:
    """Submits requests until some are sent to this worker."""

    def sent() -> bool:
        service.submit(f"for-{worker}-{monotonic()}-", 6, limit=100)
        sleep(0.5)  # time to be planned
        return bool(service.stage.sql("select 1 from batches where worker = :worker", worker=worker))

    eventually(sent)


@contextmanager
def another_redis(service: Service) -> Iterator[None]:
    """A worker whose MAGNUS_REDIS_URL names another server than the planner's."""
    other = embedded_broker(service.directory / "another-redis")
    service.programs["another-redis"] = other.program
    service.start("another-redis")
    ready = partial(worker_is_alive, service.stage.database, "lost")
    with further_worker(service, process_commands.worker("lost", "cpu", 1, ready), MAGNUS_REDIS_URL=other.url):
        submit_until_sent(service, "lost")  # only then the planner can learn of it
        yield
    stop((service.programs.pop("another-redis"), service.running.pop("another-redis")))

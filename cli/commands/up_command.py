"""`magnus up`: the whole service on one host, from two servers to Flower, until a signal comes."""

import json
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import httpx
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from cli.command_errors import Failed, NothingThere
from cli.hosting import process_commands
from cli.hosting.child_process import ProgramFailed
from cli.hosting.embedded_servers import Server, Unusable, broker_answers, create_database, postgres, valkey
from cli.hosting.service_files import RunningService, forget_service, kept_secret, read_secret, write_secret
from cli.hosting.supervisor import AlreadyRunning, Stopped, Supervisor
from cli.hosting.worker_devices import gpus, threads_each, worker_devices
from cli.options import POLICIES, json_option, settings_with, state_dir_option
from models import api_keys, live_fleet, planner_state
from models.schema_upgrade import upgrade
from models.session import make_engine, make_sessions
from settings import Settings

DASHBOARD_USER = "magnus"
WORKER_ALIVE_S = 3.0


@click.command()
@state_dir_option
@click.option("--host", help="Address of the API and the dashboard.")
@click.option("--port", type=click.IntRange(0, 65535), help="Their port; 0 picks a free one.")
@click.option("--flower-port", type=click.IntRange(0, 65535), help="Port of Flower on loopback; 0 picks a free one.")
@click.option("--workers", type=click.IntRange(0), help="Workers to start; one a GPU, or two on the CPU, if not given.")
@click.option("--devices", help="Their devices, for example cuda:0,cuda:1.")
@click.option("--kv-budget", help="KV cache budget of each, for example 20GiB.")
@click.option("--model", help="Directory or hub id of the served causal LM.")
@click.option("--policy", type=click.Choice(POLICIES), help="Put this scheduling policy in force.")
@json_option
def up(as_json: bool, policy: str | None, **options: Any) -> None:
    """Start everything and keep it up: Postgres and broker, API, planner, predictor, workers, trainer, Flower.

    Data, logs, keys and processes.json are in the state directory and survive a restart. With MAGNUS_DATABASE_URL
    and MAGNUS_REDIS_URL set, those servers are used instead. Ctrl-C stops everything that was started.
    """
    settings = settings_with(policy=policy, **options)
    state_dir = settings.state_dir.resolve()
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Supervisor(state_dir, lambda line: click.echo(f"magnus: {line}", err=True)) as supervisor:
            try:
                service, new_key = _start(supervisor, settings, state_dir, policy)
                service.write(state_dir)
                said = json.dumps(_facts(service, state_dir)) if as_json else _greeting(service, state_dir, new_key)
                click.echo(said)
                supervisor.watch()
            finally:
                forget_service(state_dir)
    except Stopped:
        pass
    except (AlreadyRunning, ProgramFailed, Unusable, PermissionError) as error:
        raise Failed(str(error)) from error
    except OperationalError as error:
        raise NothingThere(f"no connection to the database: {error.orig}; check MAGNUS_DATABASE_URL") from error


def _start(
    supervisor: Supervisor, settings: Settings, state_dir: Path, policy: str | None
) -> tuple[RunningService, str | None]:
    """The running service, and its first API key if that was made now."""
    port = _free_port(settings.host, settings.port, "--port")
    flower_port = _free_port("127.0.0.1", settings.flower_port, "--flower-port")
    database, redis_url = _start_servers(supervisor, settings, state_dir)
    upgrade(database)
    password = settings.dashboard_password
    service = RunningService(
        pid=os.getpid(),
        url=f"http://{'127.0.0.1' if settings.host == '0.0.0.0' else settings.host}:{port}",  # noqa: S104
        flower_url=f"http://127.0.0.1:{flower_port}",
        database_url=database,
        redis_url=redis_url,
        dashboard_user=DASHBOARD_USER,
        dashboard_password=password.get_secret_value() if password else kept_secret(state_dir / "dashboard-password"),
    )
    devices = worker_devices(settings.devices, _wanted_workers(settings), gpus())
    process_commands.environment(
        **settings.model_dump(exclude={"state_dir", "dashboard_password", "api_key", "url"}, exclude_none=True)
        | {"state_dir": state_dir, "port": port, "flower_port": flower_port}
        | {"database_url": database, "redis_url": redis_url, "dashboard_password": service.dashboard_password}
    )
    engine = make_engine(database, pool_size=1, name="magnus up")
    try:
        new_key = _first_key(engine, state_dir)
        with engine.begin() as connection:
            # MAGNUS_POLICY is for a fresh database: what an operator put in force later stays
            if policy is not None or planner_state.planner_inputs(connection).policy is None:
                planner_state.set_policy(connection, settings.policy)
        supervisor.start(
            process_commands.planner(),
            process_commands.predictor(),
            process_commands.flower(flower_port, f"{DASHBOARD_USER}:{service.dashboard_password}"),
        )
        threads = settings.torch_threads or threads_each(len(devices))
        supervisor.start(
            *(
                process_commands.worker(name, device, threads, _worker_ready(engine, name))
                for name, device in ((f"worker-{number}", device) for number, device in enumerate(devices, 1))
            ),
            process_commands.web(settings.host, port, _web_ready(service.url)),
            process_commands.beat(),
            process_commands.trainer(),
        )
    finally:
        engine.dispose()
    return service, new_key


def _start_servers(supervisor: Supervisor, settings: Settings, state_dir: Path) -> tuple[str, str]:
    """URLs of Postgres and broker: those of the settings, else embedded ones, started here."""
    if settings.redis_url and not broker_answers(settings.redis_url):
        raise NothingThere("no answer from the broker; check MAGNUS_REDIS_URL, and that the server runs")
    own_postgres = None if settings.database_url else postgres(state_dir / "postgres")
    own_valkey = None if settings.redis_url else valkey(state_dir / "valkey")
    own: list[Server] = [server for server in (own_postgres, own_valkey) if server is not None]
    supervisor.start(*(server.program for server in own))
    if own_postgres is not None:
        create_database(own_postgres.url)
    database = settings.database_url or (own_postgres.url if own_postgres else "")
    broker = settings.redis_url or (own_valkey.url if own_valkey else "")
    return database, broker


def _wanted_workers(settings: Settings) -> int | None:
    return settings.workers if "workers" in settings.model_fields_set else None


def _first_key(engine: Engine, state_dir: Path) -> str | None:
    """Make a key for this directory on first start, and again if the database does not know it; None if it does."""
    path = state_dir / "api-key"
    with make_sessions(engine).begin() as session:
        kept = read_secret(path)
        if kept is not None and api_keys.find(session, kept) is not None:
            return None
        _, key = api_keys.create(session, name=f"magnus up {secrets.token_hex(2)}", tenant="default")
        write_secret(path, key + "\n")
        return key


def _worker_ready(engine: Engine, name: str) -> Callable[[], bool]:
    def ready() -> bool:
        with engine.connect() as connection:
            return any(row.name == name for row in live_fleet.live_workers(connection, WORKER_ALIVE_S))

    return ready


def _web_ready(url: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=2).is_success
        except httpx.TransportError:
            return False

    return ready


def _free_port(host: str, port: int, option: str) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Failed(f"port {port} of {host} is taken ({error.strerror}); choose another with {option}") from error
        free: int = probe.getsockname()[1]
        return free


def _facts(service: RunningService, state_dir: Path) -> dict[str, str]:
    return asdict(service) | {"api_key_file": str(state_dir / "api-key"), "state_dir": str(state_dir)}


def _greeting(service: RunningService, state_dir: Path, new_key: str | None) -> str:
    key = f"key {new_key}, kept in" if new_key else "key in"
    return f"""
Magnus is up.
  API        {service.url}/v1    {key} {state_dir / "api-key"}
  Dashboard  {service.url}/      {service.dashboard_user} / {service.dashboard_password}
  Flower     {service.flower_url}/      the same
  Logs       {state_dir / "logs"}

Try: magnus submit --wait -i "Repeat the text." apple river cloud
Ctrl-C stops everything.
"""

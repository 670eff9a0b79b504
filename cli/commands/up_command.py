"""`magnus up`: starts the whole service on one host, and keeps it up until a signal to stop comes."""

import os
import secrets
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cli.checks import startup_checks
from cli.checks.startup_checks import with_engines
from cli.fetching.gguf_directories import convert_once
from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram
from cli.hosting.embedded_servers import create_database, embedded_broker, embedded_postgres
from cli.hosting.readiness import api_is_ready, worker_is_alive
from cli.hosting.service_access import POLICIES, settings_with, state_dir_option
from cli.hosting.service_files import (
    RunningService,
    forget_service,
    fresh_metrics,
    keep_private,
    read_or_create_secret,
    read_secret,
    write_secret,
)
from cli.hosting.supervisor import Stopped, Supervisor
from cli.hosting.worker_devices import cpu_workers, gpu_count, threads_each, worker_devices
from cli.output import CommandFailed, Unreachable, WrongSetting, json_option, print_result
from inference.model_directory.model_weights import count_parameters
from inference.remote.server_errors import ServerUnusable
from models import planner_state
from models.connections.connection_slots import MOST_OF, connection_shortage
from models.connections.database_errors import explain
from models.connections.schema_state import schema_state
from models.connections.session import brief_engine, make_sessions
from models.schema_upgrade import UnusableSchema, upgrade
from models.tenants import api_keys
from models.tenants.api_keys import Scope
from settings import DASHBOARD_USER, Settings

MOST_TRIED = 20  # ports that are tried: a default one that is taken, and those after it; not tuned


@click.command()
@state_dir_option
@click.option("--host", help="Address of the API and the dashboard.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the API and the dashboard; 0 picks a free one.")
@click.option("--flower-port", type=click.IntRange(0, 65535), help="Port of Flower on loopback; 0 picks a free one.")
@click.option(
    "--workers", type=click.IntRange(0), help="Number of workers; by default one for each GPU, or one or two on a CPU."
)
@click.option("--devices", help="Devices of the workers, for example cuda:0,cuda:1.")
@click.option("--kv-budget", help="KV cache budget of each worker, for example 20GiB.")
@click.option("--model", help="Directory, hub id or GGUF file of the served LM.")
@click.option(
    "--engine", "engines", multiple=True, metavar="URL", help="Serve with this server, such as vLLM; repeatable."
)
@click.option("--policy", type=click.Choice(POLICIES), help="Put this scheduling policy in force.")
@json_option
def up(as_json: bool, policy: str | None, engines: tuple[str, ...], **options: Any) -> None:
    """Start everything and keep it up: Postgres and broker, API, planner, predictor, chores, workers, trainer, Flower.

    Data, logs, keys and processes.json are in the state directory and survive a restart. With MAGNUS_DATABASE_URL
    and MAGNUS_REDIS_URL set, those servers are used instead. Ctrl-C stops everything that was started.

    With --engine those servers serve the requests, and workers with Magnus's own engine start only with --workers.
    """
    settings = settings_with(policy=policy, engine_urls=",".join(engines) or None, **options)
    state_dir = settings.state_dir.resolve()
    try:
        keep_private(state_dir)
        with Supervisor(state_dir, lambda line: click.echo(f"magnus: {line}", err=True)) as supervisor:
            try:
                service, new_key = _start_service(supervisor, settings, state_dir, overwrite_policy=policy is not None)
                service.write(state_dir)
                files = {"api_key_file": "api-key", "service_file": "service.json", "state_dir": ""}
                facts = service.without_secrets() | {name: str(state_dir / file) for name, file in files.items()}
                print_result(facts, as_json, lambda _: _greeting(service, state_dir, new_key))
                supervisor.watch()
            finally:
                forget_service(state_dir)
    except Stopped:
        pass
    except ServerUnusable as error:
        raise WrongSetting(str(error)) from error
    except UnusableSchema as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:  # a file with the directory's name, no right to write, a full or read-only disk
        where = error.filename or state_dir
        raise CommandFailed(f"{where}: {error.strerror}; choose another --state-dir or MAGNUS_STATE_DIR") from error
    except OperationalError as error:
        raise Unreachable(explain(error)) from error
    except SQLAlchemyError as error:
        raise CommandFailed(explain(error)) from error


def _start_service(
    supervisor: Supervisor, settings: Settings, state_dir: Path, *, overwrite_policy: bool
) -> tuple[RunningService, str | None]:
    """Returns the running service, and its first API key if that was made now; raises ServerUnusable."""
    settings = with_engines(settings)
    convert_once(settings.model)
    wrong = list(startup_checks.problems(settings))
    if wrong:
        raise WrongSetting("\n".join(wrong))
    given = settings.model_fields_set
    port = _free_port(settings.host, settings.port, "port" in given, "--port or MAGNUS_PORT")
    flower_port = _free_port(
        "127.0.0.1", settings.flower_port, "flower_port" in given, "--flower-port or MAGNUS_FLOWER_PORT"
    )
    if settings.database_url:
        _prepare_schema(settings.database_url)
    database_url, redis_url = _start_servers(supervisor, settings, state_dir)
    if not settings.database_url:
        _prepare_schema(database_url)
    password = settings.dashboard_password or SecretStr(read_or_create_secret(state_dir / "dashboard-password"))
    settings = process_commands.with_absolute_paths(settings).model_copy(
        update={
            "port": port,
            "flower_port": flower_port,
            "database_url": database_url,
            "redis_url": redis_url,
            "dashboard_password": password,
        }
    )
    process_commands.export_settings(settings)
    service = RunningService(
        pid=os.getpid(),
        url=f"http://{_reachable(settings.host)}:{port}",
        flower_url=f"http://127.0.0.1:{flower_port}",
        database_url=database_url,
        redis_url=redis_url,
        dashboard_user=DASHBOARD_USER,
        dashboard_password=password.get_secret_value(),
    )
    with brief_engine(database_url, "magnus up") as engine:
        new_key = _create_first_key(engine, state_dir)
        _put_policy_in_force(engine, settings.policy, overwrite=overwrite_policy)
        _start_processes(supervisor, settings, service, engine)
    return service, new_key


def _start_servers(supervisor: Supervisor, settings: Settings, state_dir: Path) -> tuple[str, str]:
    """Returns the URLs of Postgres and broker, the configured ones or those of embedded servers started here."""
    broker_problem = startup_checks.broker_problem(settings.redis_url) if settings.redis_url else None
    if broker_problem is not None:
        raise Unreachable(broker_problem)
    postgres = None if settings.database_url else embedded_postgres(state_dir / "postgres")
    broker = None if settings.redis_url else embedded_broker(state_dir / "valkey")
    supervisor.start(*(server.program for server in (postgres, broker) if server is not None))
    if postgres is not None:
        create_database(postgres.url)
    database_url = settings.database_url or (postgres.url if postgres else "")
    redis_url = settings.redis_url or (broker.url if broker else "")
    return database_url, redis_url


def _prepare_schema(database_url: str) -> None:
    """Upgrade the schema unless it is new enough: the service's role then needs no right to change tables."""
    with brief_engine(database_url, "magnus up") as engine, engine.connect() as connection:
        behind = not (state := schema_state(connection)).current and (state.known or state.revision is None)
        if not behind and state.problem is not None:
            raise CommandFailed(state.problem)
    if behind:
        upgrade(database_url)


def _create_first_key(engine: Engine, state_dir: Path) -> str | None:
    """Returns a new API key for this directory, or None if the directory has one that the database knows."""
    path = state_dir / "api-key"
    with make_sessions(engine).begin() as session:
        kept = read_secret(path)
        if kept is not None and api_keys.find(session.connection(), kept) is not None:
            return None
        name = f"magnus up {secrets.token_hex(2)}"  # shown by `magnus keys list` for the key with all scopes
        _, key = api_keys.create(session, name=name, tenant="default", scopes=frozenset(Scope))
        write_secret(path, key + "\n")
        return key


def _put_policy_in_force(engine: Engine, policy: str, *, overwrite: bool) -> None:
    """Set the policy of a fresh database; replaces an operator's choice only with `overwrite`."""
    with engine.begin() as connection:
        if overwrite or planner_state.planner_inputs(connection).policy is None:
            planner_state.set_policy(connection, policy)


def _start_processes(supervisor: Supervisor, settings: Settings, service: RunningService, engine: Engine) -> None:
    """Start everything but the servers: first what the workers need, then the rest together."""
    start = partial(_start_in_empty_directory, supervisor, settings.state_dir / "empty")
    start(
        *map(process_commands.celery_worker, process_commands.CELERY_WORKERS),
        process_commands.flower(settings.flower_port, f"{service.dashboard_user}:{service.dashboard_password}"),
    )
    devices = _own_devices(settings)
    threads = settings.torch_threads or threads_each(len(devices) + len(settings.text_models))
    workers = [
        process_commands.worker(name, device, threads, partial(worker_is_alive, engine, name))
        for name, device in ((f"worker-{number}", device) for number, device in enumerate(devices, 1))
    ]
    workers += [
        process_commands.remote_worker(name, url, partial(worker_is_alive, engine, name))
        for name, url in ((f"engine-{number}", url) for number, url in enumerate(settings.engines, 1))
    ]
    workers += [
        process_commands.embedding_worker(name, model, threads, partial(worker_is_alive, engine, name))
        for name, model in ((f"embed-{number}", model) for number, model in enumerate(settings.text_models, 1))
    ]
    # a worker ends by itself within `stop_s`; the longer bound is for a worker that hangs
    workers = [replace(one, stop_within_s=one.stop_within_s + settings.stop_s) for one in workers]
    with engine.connect() as connection:
        kinds = dict.fromkeys(MOST_OF, 1) | {"worker": len(workers)}
        shortage = connection_shortage(connection, kinds)
    if shortage is not None:
        click.echo(f"magnus: {shortage}", err=True)
    web = process_commands.web(settings.host, settings.port, partial(api_is_ready, service.url))
    # the directory in which the web processes add up their metrics
    web = replace(web, env={**web.env, "PROMETHEUS_MULTIPROC_DIR": str(fresh_metrics(settings.state_dir))})
    start(*workers, web, process_commands.beat(), process_commands.trainer())


def _start_in_empty_directory(supervisor: Supervisor, directory: Path, *programs: ChildProgram) -> None:
    """Start programs where they find no modules: Celery and gunicorn import from their working directory first."""
    directory.mkdir(mode=0o700, exist_ok=True)
    supervisor.start(*(replace(program, cwd=directory) for program in programs))


def _own_devices(settings: Settings) -> list[str]:
    """Returns a device for each worker of our own engine, or none if there are engine servers and no MAGNUS_WORKERS."""
    if not startup_checks.starts_own_workers(settings):
        return []
    requested = settings.workers if "workers" in settings.model_fields_set else None
    on_cpu = cpu_workers(count_parameters(Path(settings.model)) or 0)
    return worker_devices(settings.devices, requested, gpu_count(), on_cpu)


def _free_port(host: str, port: int, given: bool, option: str) -> int:
    """Returns the port, or the next free one if a default port is taken, and says so; raises CommandFailed."""
    problem = startup_checks.port_problem(host, port, option)
    if problem is None:
        return startup_checks.bind(host, port)
    for other in () if given else range(port + 1, port + MOST_TRIED):
        if startup_checks.port_problem(host, other, option) is None:
            click.echo(f"magnus: port {port} is taken, {other} is used instead; {option} chooses one", err=True)
            return other
    raise CommandFailed(problem)


def _reachable(host: str) -> str:
    """Returns the host as part of a URL that this machine can open."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host


def _greeting(service: RunningService, state_dir: Path, new_key: str | None) -> str:
    # key and password are shown in a terminal only: a log file or a journal would keep them, readable for others
    shown = sys.stdout.isatty()
    key = f"key {new_key}, kept in" if new_key and shown else "key in"
    password = service.dashboard_password if shown else f"the password in {state_dir / 'service.json'}"
    return f"""
Magnus is up.
  API        {service.url}/v1    {key} {state_dir / "api-key"}
  Dashboard  {service.url}/      {service.dashboard_user} / {password}
  Flower     {service.flower_url}/      the same
  Logs       {state_dir / "logs"}

For other terminals and directories:
  export MAGNUS_URL={service.url} MAGNUS_API_KEY=$(cat {shlex.quote(str(state_dir / "api-key"))})

Try: magnus submit --wait -i "Repeat the text." apple river cloud
Ctrl-C stops everything.
"""

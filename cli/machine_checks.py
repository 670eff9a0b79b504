"""The checks of `magnus doctor`: what a machine needs to run Magnus, and a remedy for what it lacks."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from cli.hosting.embedded_broker import valkey_binary
from cli.hosting.embedded_postgres import postgres_binaries
from cli.hosting.service_files import running_service
from inference.engine_errors import UnreadableTokenizer
from inference.local.cpu_dtype import cpu_dtype, parameters_of
from inference.prompt_format import load_prompt_format
from models.schema_upgrade import is_current
from models.session import make_engine
from settings import Settings

MIN_FREE_BYTES = 2 * 2**30  # the log files alone may take 320 MiB; the database grows with its requests. Not tuned
MIN_POSTGRES_VERSION = 14  # older releases are no longer maintained


@dataclass(frozen=True)
class Finding:
    """A check's result; `remedy` says what to do, None if nothing has to be done."""

    check: str
    found: str
    remedy: str | None = None


def findings(settings: Settings) -> Iterator[Finding]:
    """Every check, in the order in which `magnus up` depends on them."""
    yield _python()
    yield from (_binary("Postgres wheel", lambda: postgres_binaries() / "postgres"), _binary("broker", valkey_binary))
    yield _state_dir(settings.state_dir)
    running = running_service(settings.state_dir)
    if running is None:
        yield _port("port of the API", settings.host, settings.port, "MAGNUS_PORT")
        yield _port("port of Flower", "127.0.0.1", settings.flower_port, "MAGNUS_FLOWER_PORT")
    else:
        yield Finding("service", f"runs at {running.url}")
    yield _database(settings.database_url or (running.database_url if running else None))
    yield _redis(settings.redis_url or (running.redis_url if running else None))
    yield _model(settings.model)
    yield _dtype(settings)
    yield _torch()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    remedy = (
        None if sys.version_info >= (3, 11) else "Magnus needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"
    )
    return Finding("Python", version, remedy)


def _binary(check: str, find: Callable[[], Path]) -> Finding:
    remedy = "install the project again: make clean install; or set MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL"
    try:
        path = find()
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)  # noqa: S603
    except (OSError, ModuleNotFoundError, subprocess.TimeoutExpired) as error:
        return Finding(check, f"does not run: {error}", remedy)
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return Finding(
        check, lines[0] if lines else f"says nothing, exit status {answer.returncode}", None if lines else remedy
    )


def _state_dir(state_dir: Path) -> Finding:
    parent = next(path for path in (state_dir.resolve(), *state_dir.resolve().parents) if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        return Finding("state directory", f"{parent} is not writable", "choose another with MAGNUS_STATE_DIR")
    free = shutil.disk_usage(parent).free
    found = f"{state_dir.resolve()}, {free / 2**30:.1f} GiB free"
    return Finding("state directory", found, None if free > MIN_FREE_BYTES else "free some disk space, 2 GiB or more")


def _port(check: str, host: str, port: int, setting: str) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding(check, f"{host}:{port}: {error.strerror}", f"stop what uses it, or set {setting}")
    return Finding(check, f"{host}:{port} is free")


def _database(url: str | None) -> Finding:
    if url is None:
        return Finding("Postgres", "an embedded one, started by `magnus up`")
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            version = connection.info.server_version // 10_000
    except psycopg.Error as error:
        return Finding("Postgres", f"no connection: {error}", "check MAGNUS_DATABASE_URL, and that the server runs")
    if version < MIN_POSTGRES_VERSION:
        return Finding("Postgres", f"version {version}", f"Magnus needs Postgres {MIN_POSTGRES_VERSION} or newer")
    engine = make_engine(url, pool_size=1, name="magnus doctor")
    try:
        with engine.connect() as current:
            migrated = is_current(current)
    finally:
        engine.dispose()
    return Finding("Postgres", f"version {version}", None if migrated else "run `magnus migrate`")


def _redis(url: str | None) -> Finding:
    if url is None:
        return Finding("Redis", "an embedded one, started by `magnus up`")
    try:
        with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
            facts = client.info()
    except (redis.RedisError, ValueError) as error:
        return Finding("Redis", f"no connection: {error}", "check MAGNUS_REDIS_URL, and that the server runs")
    policy = facts.get("maxmemory_policy")
    found = f"version {facts.get('redis_version')}, {policy}"
    return Finding("Redis", found, None if policy == "noeviction" else "set maxmemory-policy noeviction")


def _model(model: str) -> Finding:
    try:
        name = load_prompt_format(model).name
    except UnreadableTokenizer as error:
        return Finding("model", str(error), "check MAGNUS_MODEL: a directory with a tokenizer.json, or a hub id")
    return Finding("model", f"{name} from {model}")


def _dtype(settings: Settings) -> Finding:
    if settings.dtype != "auto":
        return Finding("number format", f"{settings.dtype}, as MAGNUS_DTYPE says")
    parameters = parameters_of(Path(settings.model))
    if parameters is None:
        return Finding("number format", "of a CPU worker: known once the model is loaded; on CUDA: the model's own")
    dtype, why = cpu_dtype(parameters)
    return Finding("number format", f"of a CPU worker: {dtype}, because {why}; on CUDA: the model's own")


def _torch() -> Finding:
    # in a process of its own, because loading torch takes seconds and hundreds of megabytes
    script = "import torch; print(torch.__version__, torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)  # noqa: S603
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("torch", f"does not load: {last}", "install the project again: make clean install")
    version, gpus = answer.stdout.split()
    if int(gpus) == 0 and shutil.which("nvidia-smi"):
        return Finding("torch", f"{version}, sees no GPU", "install a CUDA build of torch and look at nvidia-smi")
    return Finding("torch", f"{version}, {gpus} GPUs" if int(gpus) else f"{version}, on the CPU")

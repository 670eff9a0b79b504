"""The programs of the service's processes, and the environment that they share."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr

from cli.entry_point import OUR_MODULES
from cli.hosting.child_process import ChildProgram
from cli.hosting.signs_of_life import ALIVE_WITHIN_S, http_question
from settings import PREFIX, Settings

BIN = Path(sys.executable).parent  # the directory of the Python environment's commands
# Runs a module without the working directory on Python's path; OUR_MODULES come first. Celery's command line and
# gunicorn still put the working directory first, so they are started in a directory without modules, or in ours.
PYTHON = (sys.executable, "-P", "-m")
# Keep-alive is longer than the usual 60 s of load balancers, so that they, and not this server, close idle connections.
# A connection needs no thread; 4,000 are twice the number of a thousand waiting calls and a thousand idle clients.
# gunicorn replaces a process that does not answer it for 20 s; a process that is not frozen answers every second.
GUNICORN_FLAGS = (
    "-k",
    "webapp.transport.web_worker.WebWorker",
    "--logger-class=webapp.transport.web_worker.WebLogger",
    "--worker-connections=4000",
    "--timeout=20",
    "--graceful-timeout=5",
    "--keep-alive=75",
    "--no-control-socket",
)
# The number of checks after which a waiting OpenMP thread (libgomp) sleeps. With the default, 300,000, and more threads
# than cores, a waiting thread occupies the core that the thread it waits for needs: beside a busy process 30 steps of
# SmolLM2 did not end within 70 s. With 1,000 a step of 16 rows takes 0.06 s there, and 34 ms instead of 28 where both
# cores are free.
BRIEF_SPINS = {"GOMP_SPINCOUNT": "1000"}
# niceness of workers on a CPU: planner and predictor, which keep all workers busy, go first; not tuned
CPU_WORKER_NICE = 5
FLOWER_TASKS = 2000  # tasks that Flower remembers; with its default of 100,000 it grows by 160 MB an hour at load
# niceness of Flower, and of the trainer once it has started: no request waits for them, so that workers go first
BACKGROUND_NICE = 10  # not tuned
BACKGROUND_ALIVE_WITHIN_S = 30.0  # processes of BACKGROUND_NICE may wait long for a CPU; not tuned

# For every process except workers, whose torch needs its threads: the other processes' arrays are small, and numpy's
# threads would spin on every core.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# For every process except the `magnus` commands, which set the path themselves.
PATHS = {"PYTHONPATH": os.pathsep.join([str(OUR_MODULES), *filter(None, [os.environ.get("PYTHONPATH")])])}
CONTROL = ONE_THREAD | PATHS


def web(host: str, port: int, ready: Callable[[], bool]) -> ChildProgram:
    """Returns the web server of the API and the dashboard."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ChildProgram(
        "web",
        (*PYTHON, "gunicorn", *GUNICORN_FLAGS, "-b", address, "webapp.app:create_app()"),
        env=CONTROL,
        ready=ready,
        alive_within_s=ALIVE_WITHIN_S,
        question=http_question(host, port, "/healthz"),
    )


def beat() -> ChildProgram:
    """Returns Celery's beat, which sends the periodic tasks."""
    return ChildProgram("beat", (*PYTHON, "processes.celery.beat_process"), env=CONTROL, alive_within_s=ALIVE_WITHIN_S)


# The module of each Celery worker; several of each may run, and one planner leads.
CELERY_WORKERS = {
    "planner": "tasks.planning.planner_process",
    "predictor": "tasks.prediction.predictor_process",
    "chores": "tasks.chores.chores_process",
}


def celery_worker(name: str) -> ChildProgram:
    """Returns the process of CELERY_WORKERS with this name."""
    return ChildProgram(name, (*PYTHON, CELERY_WORKERS[name]), env=CONTROL, alive_within_s=ALIVE_WITHIN_S)


def worker(name: str, device: str, threads: int, ready: Callable[[], bool]) -> ChildProgram:
    """Returns a worker with one engine on one device; on the CPU it has a lower priority than the planner."""
    environment = {"MAGNUS_TORCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    if device == "cpu":
        return _worker(name, "--device", device, environment | BRIEF_SPINS, ready, CPU_WORKER_NICE)
    return _worker(name, "--device", device, environment, ready)


def embedding_worker(name: str, model: str, threads: int, ready: Callable[[], bool]) -> ChildProgram:
    """Returns a worker for vectors or scores of this model of MAGNUS_EMBED, on the first GPU or else on the CPU."""
    environment = {"MAGNUS_TORCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return _worker(name, "--embed", model, environment | BRIEF_SPINS, ready, CPU_WORKER_NICE)


def remote_worker(name: str, url: str, ready: Callable[[], bool]) -> ChildProgram:
    """Returns a worker whose engine is the server at this URL; it waits for a server that still loads its model."""
    return _worker(name, "--engine-url", url, ONE_THREAD, ready)


def _worker(
    name: str, option: str, engine: str, env: dict[str, str], ready: Callable[[], bool], nice: int = 0
) -> ChildProgram:
    return ChildProgram(
        name,
        (str(BIN / "magnus"), "worker", "--name", name, option, engine),
        env=env,
        nice=nice,
        ready=ready,
        ready_within_s=1800.0,  # a large model loads slowly
        stop_within_s=20.0,
        alive_within_s=ALIVE_WITHIN_S,
    )


def trainer() -> ChildProgram:
    """Returns the trainer, which refits the learned models; it lowers its own priority once it has started."""
    command = (*PYTHON, "tasks.training.trainer_process", str(BACKGROUND_NICE))
    return ChildProgram("trainer", command, env=CONTROL, alive_within_s=BACKGROUND_ALIVE_WITHIN_S)


def flower(port: int, credentials: str) -> ChildProgram:
    """Returns Celery's dashboard: read-only, on loopback, with a password that the process table does not show."""
    options = (f"--port={port}", "--read_only", f"--max_tasks={FLOWER_TASKS}")
    command = (*PYTHON, "processes.celery.flower_app", "--address=127.0.0.1", *options)
    return ChildProgram(
        "flower",
        command,
        env={**CONTROL, "FLOWER_BASIC_AUTH": credentials},
        nice=BACKGROUND_NICE,
        alive_within_s=BACKGROUND_ALIVE_WITHIN_S,
        question=http_question("127.0.0.1", port, "/healthcheck"),
    )


def with_absolute_paths(settings: Settings) -> Settings:
    """Returns the settings for a process with another working directory."""
    paths: dict[str, str | Path] = {"model": _absolute(settings.model), "encoder": _absolute(settings.encoder)}
    if settings.adapters is not None:
        paths["adapters"] = settings.adapters.absolute()
    for name in ("embed", "models"):
        if named := getattr(settings, name):
            paths[name] = ",".join(_absolute(one.strip()) for one in named.split(","))
    return settings.model_copy(update={"state_dir": settings.state_dir.resolve(), **paths})


def _absolute(path: str) -> str:
    """Returns a directory's absolute path, and any other text as it is."""
    return str(Path(path).absolute()) if Path(path).is_dir() else path


def export_settings(settings: Settings) -> None:
    """Write the settings into this process's environment, which every child inherits and reads."""
    for name, value in settings:
        if value is None or name in ("api_key", "url"):
            continue
        os.environ[PREFIX + name.upper()] = value.get_secret_value() if isinstance(value, SecretStr) else str(value)

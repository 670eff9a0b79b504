"""The command of each of the service's processes; the Procfile has the same commands for several hosts."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from cli.hosting.child_process import ChildProgram
from settings import PREFIX, Settings

BIN = Path(sys.executable).parent  # where the environment's commands are
CELERY = str(BIN / "celery")
# One task at a time; Celery's gossip between workers (events, clocks at the start) serves nothing here.
CELERY_WORKER_FLAGS = ("-P", "threads", "-c", "1", "--without-gossip", "--without-mingle")
# 32 threads: 24 for calls that wait (see `webapp/app.py`), 8 for others. One process, which counts rate limits in its
# memory. Keep-alive is longer than the usual 60 s of load balancers, so that they close idle connections, not we.
GUNICORN_FLAGS = (
    "-k",
    "gthread",
    "-w1",
    "--threads=32",
    "--graceful-timeout=5",
    "--keep-alive=75",
    "--no-control-socket",
)
CPU_WORKER_NICE = 5  # below the planner and predictor, which keep all workers busy with little CPU; not tuned
TRAINER_NICE = 10  # below the workers as well, because no request waits for it; not tuned

# For every process but the workers: their arrays are small, and numpy's threads would spin on every core.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def web(host: str, port: int, ready: Callable[[], bool]) -> ChildProgram:
    """The API and the dashboard."""
    command = (
        str(BIN / "gunicorn"),
        *GUNICORN_FLAGS,
        "-b",
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "webapp.app:create_app()",
    )
    return ChildProgram("web", command, env=ONE_THREAD, ready=ready)


def beat() -> ChildProgram:
    """Celery's beat, which sends the periodic tasks."""
    return ChildProgram("beat", (CELERY, "-A", "tasks.app", "beat"), env=ONE_THREAD)


def planner() -> ChildProgram:
    """Batches and orders the requests; several may run, one of them leads."""
    command = (
        CELERY,
        "-A",
        "tasks.planning.plan_task",
        "worker",
        "-Q",
        "plan",
        "-n",
        "planner@%h",
        *CELERY_WORKER_FLAGS,
    )
    return ChildProgram("planner", command, env=ONE_THREAD)


def predictor() -> ChildProgram:
    """Predicts generation lengths and does the upkeep; any number may run."""
    celery = (CELERY, "-A", "tasks.prediction.predict_task", "worker")
    return ChildProgram(
        "predictor", (*celery, "-Q", "predict,upkeep", "-n", "predictor@%h", *CELERY_WORKER_FLAGS), env=ONE_THREAD
    )


def worker(name: str, device: str, threads: int, ready: Callable[[], bool]) -> ChildProgram:
    """One engine on one device, with MAGNUS_KV_BUDGET. It may take 30 minutes to load a large model.

    On the CPU, which all processes share, it runs at a lower priority than the processes that feed the workers.
    """
    command = (str(BIN / "magnus"), "worker", "--name", name, "--device", device)
    environment = {"MAGNUS_TORCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    nice = CPU_WORKER_NICE if device == "cpu" else 0
    return ChildProgram(
        name, command, env=environment, nice=nice, ready=ready, ready_within_s=1800.0, stop_within_s=20.0
    )


def trainer() -> ChildProgram:
    """Refits the learned models."""
    return ChildProgram(
        "trainer", (sys.executable, "-m", "tasks.training.trainer_process"), env=ONE_THREAD, nice=TRAINER_NICE
    )


def flower(port: int, credentials: str) -> ChildProgram:
    """Celery's dashboard: read-only, on loopback, with a password that the process table does not show."""
    command = (CELERY, "-A", "tasks.app", "flower", "--address=127.0.0.1", f"--port={port}", "--read_only")
    return ChildProgram("flower", command, env={**ONE_THREAD, "FLOWER_BASIC_AUTH": credentials})


def export_settings(settings: Settings) -> None:
    """Put settings into this process's environment, which every child inherits and reads."""
    values = settings.model_dump(exclude={"dashboard_password", "api_key", "url"}, exclude_none=True)
    if settings.dashboard_password is not None:
        values["dashboard_password"] = settings.dashboard_password.get_secret_value()
    os.environ.update({PREFIX + name.upper(): str(value) for name, value in values.items()})

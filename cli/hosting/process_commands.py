"""The service's processes and their commands; the Procfile says the same for several hosts."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from cli.hosting.child_process import ChildProgram

BIN = Path(sys.executable).parent
CELERY = str(BIN / "celery")
WORKER_FLAGS = ("-P", "threads", "-c", "1", "--without-gossip", "--without-mingle")
WEB_FLAGS = ("-k", "gthread", "-w1", "--threads=32", "--graceful-timeout=5", "--keep-alive=75", "--no-control-socket")
CPU_WORKER_NICE = 5

# One thread is enough beside the workers, and numpy would otherwise spin on every core.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def web(host: str, port: int, ready: Callable[[], bool]) -> ChildProgram:
    """The API and the dashboard."""
    command = (str(BIN / "gunicorn"), *WEB_FLAGS, "-b", f"{host}:{port}", "webapp.app:create_app()")
    return ChildProgram("web", command, env=ONE_THREAD, ready=ready)


def beat() -> ChildProgram:
    """The ticks."""
    return ChildProgram("beat", (CELERY, "-A", "tasks.app", "beat"), env=ONE_THREAD)


def planner() -> ChildProgram:
    """The one that batches and orders; several may run, one leads."""
    command = (CELERY, "-A", "tasks.planning.plan_task", "worker", "-Q", "plan", "-n", "planner@%h", *WORKER_FLAGS)
    return ChildProgram("planner", command, env=ONE_THREAD)


def predictor() -> ChildProgram:
    """Predicts generation lengths and does the upkeep; any number may run."""
    queues = "predict,upkeep"
    command = (
        CELERY,
        "-A",
        "tasks.prediction.predict_task",
        "worker",
        "-Q",
        queues,
        "-n",
        "predictor@%h",
        *WORKER_FLAGS,
    )
    return ChildProgram("predictor", command, env=ONE_THREAD)


def worker(name: str, device: str, threads: int, ready: Callable[[], bool]) -> ChildProgram:
    """One engine on one device; its KV budget is MAGNUS_KV_BUDGET. A large model may load for minutes.

    On a CPU that all share, it lets those go first who need little and keep all workers busy.
    """
    command = (str(BIN / "magnus"), "worker", "--name", name, "--device", device)
    environment = {"MAGNUS_TORCH_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    nice = CPU_WORKER_NICE if device == "cpu" else 0
    return ChildProgram(
        name, command, env=environment, nice=nice, ready=ready, ready_within_s=1800.0, stop_within_s=20.0
    )


def trainer() -> ChildProgram:
    """Refits the models; nice, because nobody waits for it."""
    return ChildProgram("trainer", (sys.executable, "-m", "tasks.training.trainer_process"), env=ONE_THREAD, nice=10)


def flower(port: int, credentials: str) -> ChildProgram:
    """Celery's own view, on loopback, with a password that stays out of the process table, read-only."""
    command = (CELERY, "-A", "tasks.app", "flower", "--address=127.0.0.1", f"--port={port}", "--read_only")
    return ChildProgram("flower", command, env={**ONE_THREAD, "FLOWER_BASIC_AUTH": credentials})


def environment(**settings: object) -> None:
    """Hand settings to every child, by the environment that they all read."""
    os.environ.update({f"MAGNUS_{name.upper()}": str(value) for name, value in settings.items()})

"""`magnus worker`: one engine on one device, with a Celery queue of its own."""

import sys

import click

from cli import startup_checks
from cli.command_errors import CommandFailed
from cli.options import settings_with


@click.command()
@click.option("--name", required=True, help="Unique in the fleet; the worker's queue is gpu.NAME.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda:0, …; auto: the first GPU, else the CPU.")
@click.option("--kv-budget", help="KV cache budget, for example 20GiB; MAGNUS_KV_BUDGET if not given.")
def worker(name: str, device: str, kv_budget: str | None) -> None:
    """Serve batches on one device until a signal comes; needs MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL."""
    settings = settings_with(kv_budget=kv_budget)
    missing = [f"MAGNUS_{url.upper()}" for url in ("database_url", "redis_url") if getattr(settings, url) is None]
    if missing:
        raise click.UsageError(f"a worker needs {' and '.join(missing)}")
    wrong = [problem for problem in (startup_checks.model_problem(settings.model),) if problem]
    wrong += startup_checks.device_problems(device)
    if wrong:
        raise CommandFailed("\n".join(wrong))
    # imported here because it loads torch, which `magnus worker --help` does not need
    from inference.engine_errors import InferenceError
    from tasks.serving.worker_process import run_worker

    try:
        sys.exit(run_worker(name, device, settings.kv_budget))
    except InferenceError as error:
        raise click.ClickException(f"worker {name}: {error}") from error

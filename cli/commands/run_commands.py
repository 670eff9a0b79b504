"""`magnus run` and `magnus worker`: one of the service's processes in the foreground, for supervisors of your own."""

import os
import sys
from typing import NoReturn

import click

from cli.checks import startup_checks
from cli.entry_point import OUR_MODULES
from cli.fetching.gguf_directories import convert_once
from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram
from cli.hosting.service_access import settings_with
from cli.output import CommandFailed, WrongSetting
from extras import load
from inference.remote.server_probe import ENGINES, EngineChoice
from settings import DASHBOARD_USER, Settings

LEARN = ("predictor", "trainer")
READ_THE_MODEL = ("web", *LEARN)
WORKER = "a worker without --engine-url"
PROCESSES = ("web", *process_commands.CELERY_WORKERS, "beat", "trainer", "flower")


@click.command()
@click.argument("process", type=click.Choice(PROCESSES))
def run(process: str) -> None:
    """Become one of the service's processes; needs MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL.

    It keeps its process id, so that signals and supervisors reach it. Workers have a command of their own,
    `magnus worker`. First run `magnus migrate`.
    """
    settings = settings_with()
    _require_servers(process, settings)
    if process in READ_THE_MODEL:
        convert_once(settings.model)
    if process == "web" and (wrong := startup_checks.model_problem(settings.model, needs_weights=False)):
        raise WrongSetting(wrong)
    if process in LEARN and (lacking := list(startup_checks.missing_for_learning(settings))):
        raise WrongSetting("\n".join(lacking))
    program = program_of(process, settings)
    process_commands.export_settings(process_commands.with_absolute_paths(settings))
    os.environ.update(program.env)
    os.nice(program.nice)
    # Celery and gunicorn put the working directory first on Python's path
    os.chdir(OUR_MODULES)
    os.execv(program.command[0], program.command)  # noqa: S606


def program_of(process: str, settings: Settings) -> ChildProgram:
    """Returns the process as `magnus up` starts it; raises CommandFailed for a Flower without a password."""
    if process == "web":
        return process_commands.web(settings.host, settings.port, ready=bool)
    if process == "flower":
        return process_commands.flower(settings.flower_port, _flower_credentials(settings))
    if process in process_commands.CELERY_WORKERS:
        return process_commands.celery_worker(process)
    return process_commands.beat() if process == "beat" else process_commands.trainer()


def _require_servers(process: str, settings: Settings) -> None:
    missing = [f"MAGNUS_{url.upper()}" for url in ("database_url", "redis_url") if getattr(settings, url) is None]
    if missing:
        raise click.UsageError(f"{process} needs {' and '.join(missing)}")


def _flower_credentials(settings: Settings) -> str:
    password = settings.dashboard_password
    if password is None or not password.get_secret_value():
        raise CommandFailed("Flower needs a password: set MAGNUS_DASHBOARD_PASSWORD")
    return f"{DASHBOARD_USER}:{password.get_secret_value()}"


@click.command()
@click.option("--name", required=True, help="Unique in the fleet; the worker's queue is gpu.NAME.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda:0, …; auto: the first GPU, else the CPU.")
@click.option("--kv-budget", help="KV cache budget, for example 20GiB; MAGNUS_KV_BUDGET if not given.")
@click.option("--engine-url", help="Let this inference server serve the rows, instead of a device.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True, help="The server's kind.")
@click.option("--capacity-tokens", type=click.IntRange(1), help="Tokens of the server's KV cache, if it reports none.")
@click.option("--embed", metavar="MODEL", help="Compute vectors or scores with this sentence-transformers model.")
@click.option("--max-rows", type=click.IntRange(1), help="Most requests in the server at once.")
@click.option("--models", help="Comma-separated names or directories of LMs to load as requests call for them.")
def worker(
    name: str,
    device: str,
    kv_budget: str | None,
    engine_url: str | None,
    engine: EngineChoice,
    capacity_tokens: int | None,
    embed: str | None,
    max_rows: int | None,
    models: str | None,
) -> None:
    """Serve batches until a signal comes; needs MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL.

    It serves MAGNUS_MODEL and those of MAGNUS_MODELS, one at a time, or only those that --models names.

    With --embed it serves a model of MAGNUS_EMBED, which the web process and chores must have, too. With --engine-url
    a vLLM server of the runner `pooling` computes its vectors or scores.

    With --engine-url the rows run in that server: vLLM, llama.cpp, transformers serve, or any that speaks OpenAI's API.
    It is asked for each of those models by its name, and loads it then.
    """
    settings = settings_with(kv_budget=kv_budget)
    _require_servers("a worker", settings)
    if embed is not None:
        _embed(name, embed, device, engine_url, settings)
    if engine_url is not None:
        # imported here because it reads the addresses from the environment
        from tasks.serving.remote_worker import run_remote_worker

        several = models is not None or settings.models is not None
        chosen = chosen_lms(settings, models) if several else {}
        sys.exit(run_remote_worker(name, engine_url, engine, capacity_tokens, max_rows, chosen))
    convert_once(settings.model)
    chosen = chosen_lms(settings, models)
    wrong = [problem for one in chosen.values() if (problem := startup_checks.model_problem(one))]
    wrong += [*startup_checks.adapter_problems(settings), *startup_checks.device_problems(device)]
    if wrong:
        raise WrongSetting("\n".join(wrong))
    sys.exit(load("tasks.serving.local_worker", WORKER).run_worker(name, device, settings.kv_budget, chosen))


def chosen_lms(settings: Settings, models: str | None) -> dict[str, str]:
    """Returns the directories of the LMs that a worker can load, by name: those that `models` names, or all."""
    if models is None:
        return settings.lms
    names = [one.strip() for one in models.split(",") if one.strip()]
    known = settings.lms | {directory: directory for directory in settings.lms.values()}
    unknown = [one for one in names if one not in known]
    if unknown or not names:
        there = ", ".join(settings.lms)
        raise click.BadParameter(f"{', '.join(unknown)}: name some of {there} (MAGNUS_MODEL and MAGNUS_MODELS)")
    by_directory = {directory: name for name, directory in settings.lms.items()}
    return {by_directory.get(one, one): known[one] for one in names}


def _embed(name: str, model: str, device: str, url: str | None, settings: Settings) -> NoReturn:
    """Become a worker of `model`, which is a name of a model in MAGNUS_EMBED, or is written as models are there."""
    models = settings.text_models if model in settings.text_models else settings_with(embed=model).text_models
    if len(models) != 1 and model not in models:
        raise click.BadParameter("name one model", param_hint="--embed")
    chosen = {model: models[model]} if model in models else models
    wrong = list(startup_checks.embedding_problems(chosen, ())) + list(startup_checks.device_problems(device))
    if wrong:
        raise WrongSetting("\n".join(wrong))
    ((model, directory),) = chosen.items()
    if url is not None:
        # imported here because it reads the addresses from the environment
        from tasks.serving.text_serving import run_remote_embedding_worker

        sys.exit(run_remote_embedding_worker(name, model, directory, url))
    worker = load("tasks.serving.embedding_worker", WORKER)
    sys.exit(worker.run_embedding_worker(name, model, directory, device))

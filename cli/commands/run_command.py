"""`magnus run`: one of the service's processes in the foreground, for several hosts and for their supervisors."""

import os

import click

from cli.entry_point import OUR_MODULES
from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram
from cli.output import CommandFailed
from cli.service_access import settings_with
from settings import DASHBOARD_USER, Settings

PROCESSES = ("web", "planner", "predictor", "chores", "beat", "trainer", "flower")


@click.command()
@click.argument("process", type=click.Choice(PROCESSES))
def run(process: str) -> None:
    """Become one of the service's processes; needs MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL.

    It keeps its process id, so that signals and supervisors reach it. Workers have a command of their own,
    `magnus worker`. First run `magnus migrate`.
    """
    settings = settings_with()
    missing = [f"MAGNUS_{url.upper()}" for url in ("database_url", "redis_url") if getattr(settings, url) is None]
    if missing:
        raise click.UsageError(f"{process} needs {' and '.join(missing)}")
    program = program_of(process, settings)
    process_commands.export_settings(process_commands.with_absolute_paths(settings))
    os.environ.update(program.env)
    os.nice(program.nice)
    # Celery and gunicorn put the working directory first on Python's path
    os.chdir(OUR_MODULES)
    os.execv(program.command[0], program.command)  # noqa: S606


def program_of(process: str, settings: Settings) -> ChildProgram:
    """What `magnus up` would start; raises CommandFailed for a Flower without a password."""
    if process == "web":
        return process_commands.web(settings.host, settings.port, ready=bool)
    if process == "flower":
        return process_commands.flower(settings.flower_port, _flower_credentials(settings))
    return {
        "planner": process_commands.planner,
        "predictor": process_commands.predictor,
        "chores": process_commands.chores,
        "beat": process_commands.beat,
        "trainer": process_commands.trainer,
    }[process]()


def _flower_credentials(settings: Settings) -> str:
    password = settings.dashboard_password
    if password is None or not password.get_secret_value():
        raise CommandFailed("Flower needs a password: set MAGNUS_DASHBOARD_PASSWORD")
    return f"{DASHBOARD_USER}:{password.get_secret_value()}"

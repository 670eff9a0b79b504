"""The `magnus` command. A command's module is imported when it is called, so that `magnus status` never loads torch."""

import importlib
import sys

import click
from dotenv import load_dotenv
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from models.connections.database_errors import explain
from settings import VERSION, UnknownSetting, problems_of

# Name of the command -> module and attribute, in the order in which a newcomer needs them.
COMMANDS = {
    "up": "cli.commands.up_command:up",
    "demo": "cli.commands.demo_command:demo",
    "submit": "cli.commands.request_commands:submit",
    "status": "cli.commands.request_commands:status",
    "cancel": "cli.commands.request_commands:cancel",
    "batch": "cli.commands.batch_commands:batch",
    "usage": "cli.commands.account_commands:usage",
    "webhooks": "cli.commands.account_commands:webhooks",
    "keys": "cli.commands.tenant_commands:keys",
    "tenant": "cli.commands.tenant_commands:tenant",
    "migrate": "cli.commands.setup_commands:migrate",
    "train": "cli.commands.learned_commands:train",
    "model": "cli.commands.fetch_commands:model",
    "models": "cli.commands.learned_commands:models",
    "policy": "cli.commands.policy_commands:policy",
    "lab": "cli.commands.policy_commands:lab",
    "run": "cli.commands.run_command:run",
    "worker": "cli.commands.worker_command:worker",
    "profile": "cli.commands.profile_command:profile",
    "settings": "cli.commands.setup_commands:settings",
    "doctor": "cli.commands.doctor_command:doctor",
}


class Commands(click.Group):
    """The commands of COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command's module."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION)
def commands() -> None:
    """A durable job service for LLM requests on GPUs of your own.

    Settings come from MAGNUS_* variables, also from a file `.env` in the working directory;
    `magnus settings` prints them all.

    \b
    Exit status: 0 done, 1 failed, 2 wrong usage or setting, 3 no service or database to talk to, 130 interrupted.
    """


def main() -> None:
    """Entry point: click's own, with each error of the settings as one line."""
    try:
        load_dotenv(".env")
        commands(prog_name="magnus")
    except UnicodeDecodeError as error:
        where = "`.env`" if error.object else "a file"
        click.echo(f"magnus: {where} is no UTF-8 text (byte {error.start}): save it as UTF-8", err=True)
        sys.exit(2)
    except (UnknownSetting, ValidationError) as error:
        for line in problems_of(error):
            click.echo(f"magnus: {line}", err=True)
        sys.exit(2)
    except SQLAlchemyError as error:
        click.echo(f"magnus: {explain(error)}", err=True)
        sys.exit(3)
    except OSError as error:
        click.echo(f"magnus: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        sys.exit(1)

"""The `magnus` command: imports only the module of the command that is called, so `magnus status` loads no torch."""

import importlib
import sys

import click
from click.shell_completion import CompletionItem
from dotenv import load_dotenv
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from extras import ExtraMissing
from inference.engine_errors import InferenceError
from models.connections.database_errors import explain
from setting_mistakes import problems_of
from settings import VERSION, UnknownSetting

# The commands for each group of users, by name: module in `cli.commands` and attribute, and one line of help.
SECTIONS = {
    "Try it on this machine": {
        "up": ("up_command:up", "Start the whole service and keep it up until Ctrl-C."),
        "demo": ("demo_command:demo", "Send requests to a service and show how they were served."),
        "doctor": ("doctor_command:doctor", "Check what a service needs: Python, ports, database, GPUs."),
        "settings": ("setup_commands:settings", "Print every setting with its default and meaning."),
        "completion": ("completion_command:completion", "Print the script of your shell's completion."),
    },
    "Send requests": {
        "submit": ("client.request_commands:submit", "Submit one request, or each line of a file."),
        "chat": ("client.chat_command:chat", "Chat in the terminal, with each answer's predicted length."),
        "status": ("client.request_commands:status", "Show the status of requests, or of the whole service."),
        "why": ("client.request_commands:why", "Say why a request is not running."),
        "cancel": ("client.request_commands:cancel", "Cancel requests, whether they wait or run."),
        "batch": ("client.batch_commands:batch", "Send a file as one batch, and fetch its answers."),
        "usage": ("client.account_commands:usage", "Show requests, tokens and GPU-seconds of each day."),
        "webhooks": ("client.account_commands:webhooks", "Register addresses that get an event for each answer."),
        "mcp": ("client.mcp_command:mcp", "Let agents use the service as tools (MCP)."),
    },
    "Operate a service": {
        "keys": ("tenant_commands:keys", "Create, list and revoke API keys."),
        "tenant": ("tenant_commands:tenant", "Set and list tenants' limits and weights; remove a tenant."),
        "policy": ("policy_commands:policy", "Show or change the scheduling policy in force."),
        "lab": ("policy_commands:lab", "Simulate the last minutes' requests under every policy."),
        "requests": ("queue_commands:requests", "Move or cancel the waiting requests of a model."),
        "migrate": ("setup_commands:migrate", "Bring the database to the newest schema, or check it."),
    },
    "Choose and train models": {
        "model": ("fetch_commands:model", "Fetch a language model to serve, or a text encoder."),
        "learned": ("learned_commands:learned", "List what Magnus has learned, and activate a version."),
        "train": ("learned_commands:train", "Train the length predictor on a file of known answers."),
        "profile": ("profile_command:profile", "Measure the served model's speed on a device."),
    },
    "Run its processes on several hosts": {
        "run": ("run_commands:run", "Become one process, such as web, planner or trainer."),
        "worker": ("run_commands:worker", "Become a worker: serve batches on one device."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
FORMER = {"models": "learned"}  # names of earlier releases, which help no longer shows


class Commands(click.Group):
    """The commands of SECTIONS; help is printed without importing their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of SECTIONS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command's module."""
        cmd_name = FORMER.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"cli.commands.{module}"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the names of commands, without importing their modules, and the options before them."""
        names = [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with a line for each of its commands."""
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:10}", line) for name, (_, line) in section.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    subcommand_metavar="COMMAND [ARGUMENT ...]",
)
@click.version_option(VERSION)
def commands() -> None:
    """A durable job service for LLM requests on GPUs of your own.

    Settings come from MAGNUS_* variables, also from a file `.env` in the working directory;
    `magnus settings` prints them all.

    \b
    Exit status: 0 done, 1 failed, 2 wrong usage or setting,
    3 no service or database to talk to, 130 interrupted.
    """


def main() -> None:
    """Run the command; print errors of settings, models, database and files as single lines instead of tracebacks."""
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
    except (ExtraMissing, InferenceError) as error:  # an extra is not installed; a model or a server cannot be used
        click.echo(f"magnus: {error}", err=True)
        sys.exit(2)
    except SQLAlchemyError as error:
        click.echo(f"magnus: {explain(error)}", err=True)
        sys.exit(3)
    except OSError as error:
        click.echo(f"magnus: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        sys.exit(1)

"""The command line as a whole: every command and every option explains itself."""

import click
import pytest
from click.testing import CliRunner

from cli.main import COMMANDS, commands


def test_help_lists_every_command_with_a_sentence() -> None:
    said = CliRunner().invoke(commands, ["--help"]).output
    for name in COMMANDS:
        assert f"  {name} " in said


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_explained(name: str) -> None:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    for each in command.commands.values() if isinstance(command, click.Group) else [command]:
        assert each.help
        for parameter in each.params:
            assert not isinstance(parameter, click.Option) or parameter.help, f"{each.name} {parameter.name}"


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(commands, ["fly"]).exit_code == 2

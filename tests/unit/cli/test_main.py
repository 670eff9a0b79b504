"""The command line as a whole: every command and every option explains itself."""

import click
import pytest
from click.testing import CliRunner

from cli.main import COMMANDS, commands


def help_at_80_columns(*words: str) -> list[str]:
    said = CliRunner().invoke(commands, [*words, "--help"], terminal_width=80)
    assert said.exit_code == 0
    return said.output.splitlines()


def test_no_line_of_help_is_cut_at_80_columns() -> None:
    assert [line for line in help_at_80_columns() if line.endswith("...") or len(line) > 80] == []


@pytest.mark.parametrize("group", ["batch", "keys", "model", "learned", "models", "policy", "tenant", "webhooks"])
def test_no_line_of_a_groups_help_is_cut_at_80_columns(group: str) -> None:
    lines = help_at_80_columns(group)
    assert [line for line in lines if line.endswith("...") and not line.startswith("Usage:")] == []


def test_every_command_has_one_line_of_help_that_tells_it_from_all_others() -> None:
    lines = help_at_80_columns()
    helps = [next(line for line in lines if line.split()[:1] == [name]) for name in COMMANDS]
    assert len({line.split(maxsplit=1)[1] for line in helps}) == len(COMMANDS)
    assert all(line.endswith(".") for line in helps)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_explained(name: str) -> None:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    for each in command.commands.values() if isinstance(command, click.Group) else [command]:
        assert each.help
        for parameter in each.params:
            assert not isinstance(parameter, click.Option) or parameter.help, f"{each.name} {parameter.name}"

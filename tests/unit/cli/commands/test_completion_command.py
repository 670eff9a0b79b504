"""The script of each shell, and what it completes."""

import shutil
import subprocess

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from cli.commands.completion_command import SHELLS
from cli.main import COMMANDS, commands


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_that_calls_magnus_and_says_where_it_belongs(shell: str) -> None:
    said = CliRunner().invoke(commands, ["completion", shell])
    assert said.exit_code == 0
    assert f"_MAGNUS_COMPLETE={shell}_complete" in said.output
    assert said.output.splitlines()[-1].startswith(f"# To install: magnus completion {shell} >")


def test_bash_takes_its_script() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = CliRunner().invoke(commands, ["completion", "bash"]).output
    checked = subprocess.run([bash, "-n"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_commands_options_and_choices_are_completed() -> None:
    complete = ShellComplete(commands, {}, "magnus", "_MAGNUS_COMPLETE").get_completions
    assert [(one.value, one.help) for one in complete([], "cha")] == [("chat", COMMANDS["chat"][1])]
    assert {one.value for one in complete([], "")} == set(COMMANDS)
    assert [one.value for one in complete(["batch"], "ca")] == ["cancel"]
    assert [one.value for one in complete(["chat"], "--mo")] == ["--model"]
    assert [one.value for one in complete(["completion"], "z")] == ["zsh"]

"""The Procfile says what `magnus up` does."""

import re
import shlex
from pathlib import Path

from cli.hosting import process_commands
from cli.hosting.child_process import ChildProgram

ROOT = Path(__file__).parents[4]


def procfile() -> dict[str, list[str]]:
    lines = re.findall(r"^(\w+): (.*)$", (ROOT / "Procfile").read_text(), re.MULTILINE)
    return {name: shlex.split(command) for name, command in lines}


def words(program: ChildProgram) -> list[str]:
    """The command as one would type it, with the program's name instead of its path."""
    name = Path(program.command[0]).name
    return ["python" if name.startswith("python") else name, *program.command[1:]]


def test_the_procfile_has_the_commands_of_magnus_up() -> None:
    assert procfile() == {
        "web": words(process_commands.web("0.0.0.0", 8000, ready=bool)),
        "beat": words(process_commands.beat()),
        "planner": words(process_commands.planner()),
        "predictor": words(process_commands.predictor()),
        "trainer": words(process_commands.trainer()),
        "worker": words(process_commands.worker("$(hostname)-0", "cuda:0", 1, ready=bool)),
        "flower": words(process_commands.flower(5555, "user:password")),
    }


def test_no_password_is_in_the_process_table() -> None:
    assert "secret" not in " ".join(process_commands.flower(5555, "magnus:secret").command)

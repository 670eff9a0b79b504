"""The Procfile says what `magnus up` does."""

import re
import shlex
from pathlib import Path

from cli import processes
from cli.program import Program

ROOT = Path(__file__).parents[3]


def procfile() -> dict[str, list[str]]:
    lines = re.findall(r"^(\w+): (.*)$", (ROOT / "Procfile").read_text(), re.MULTILINE)
    return {name: shlex.split(command) for name, command in lines}


def words(program: Program) -> list[str]:
    """The command as one would type it, with the program's name instead of its path."""
    name = Path(program.command[0]).name
    return ["python" if name.startswith("python") else name, *program.command[1:]]


def test_the_procfile_has_the_commands_of_magnus_up() -> None:
    assert procfile() == {
        "web": words(processes.web("0.0.0.0", 8000, ready=bool)),
        "beat": words(processes.beat()),
        "planner": words(processes.planner()),
        "predictor": words(processes.predictor()),
        "trainer": words(processes.trainer()),
        "worker": words(processes.worker("$(hostname)-0", "cuda:0", 1, ready=bool)),
        "flower": words(processes.flower(5555, "user:password")),
    }


def test_no_password_is_in_the_process_table() -> None:
    assert "secret" not in " ".join(processes.flower(5555, "magnus:secret").command)

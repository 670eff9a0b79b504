"""The processes: the Procfile starts those of `magnus up`, each where no module of others is found first."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from cli.commands.run_commands import PROCESSES, program_of, worker
from cli.hosting.child_process import ChildProgram
from cli.hosting.process_commands import export_settings
from settings import Settings

ROOT = Path(__file__).parents[4]
SETTINGS = Settings(dashboard_password="a long secret", host="0.0.0.0", port=8000, flower_port=5555)
CONTROL = [program_of(process, SETTINGS) for process in PROCESSES]


def procfile() -> dict[str, list[str]]:
    lines = re.findall(r"^(\w+): (.*)$", (ROOT / "Procfile").read_text(), re.MULTILINE)
    return {name: shlex.split(command) for name, command in lines}


def test_the_procfile_runs_every_process() -> None:
    lines = procfile()
    assert lines.pop("worker")[:2] == ["magnus", "worker"]
    assert lines == {name: ["magnus", "run", name] for name in PROCESSES}


def test_the_procfiles_worker_has_options_that_exist() -> None:
    command = procfile()["worker"][2:]
    with click.Context(worker) as context:
        worker.parse_args(context, command)
    assert context.params["device"] == "cuda:0"


@pytest.mark.parametrize("program", CONTROL, ids=lambda program: program.name)
def test_our_modules_come_first_and_the_working_directory_does_not(program: ChildProgram) -> None:
    assert program.command[1:3] == ("-P", "-m")
    assert program.env["PYTHONPATH"].split(":")[0] == str(ROOT)


def test_no_password_is_in_the_process_table() -> None:
    assert "secret" not in " ".join(part for program in CONTROL for part in program.command)


def test_every_process_gets_the_secrets_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    given: dict[str, Any] = dict.fromkeys(("dashboard_password", "engine_key", "oidc_client_secret"), "a long secret")
    export_settings(Settings(**given))
    assert {name: environment[f"MAGNUS_{name.upper()}"] for name in given} == given
    assert "MAGNUS_API_KEY" not in environment

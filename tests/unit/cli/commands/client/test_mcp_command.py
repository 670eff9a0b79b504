"""`magnus mcp` where its package is missing."""

import sys

import pytest
from click.testing import CliRunner

from cli.main import commands


def test_without_the_extra_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cli.agent_tools", None)
    said = CliRunner().invoke(commands, ["mcp", "--url", "http://magnus", "--api-key", "key"])
    assert (said.exit_code, said.output) == (
        1,
        "Error: the package mcp is not installed: pip install 'magnus-llm[mcp]'\n",
    )

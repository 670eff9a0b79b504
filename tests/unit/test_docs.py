"""The documents say what is there: every file that they name exists, every command that they show is a command."""

import re
from pathlib import Path

import pytest

from cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
ROOMS = "cli|webapp|tasks|scheduling|learning|inference|models|migrations|benchmarks|docs|tests"

pytestmark = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def test_every_file_that_is_named_exists(document: Path) -> None:
    named = re.findall(rf"`((?:{ROOMS})/[\w./-]*)`", document.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_command_that_is_shown_is_a_command(document: Path) -> None:
    shown = re.findall(r"(?:`|\$ |bin/)magnus ([a-z]+)", document.read_text())
    assert set(shown) <= set(COMMANDS)


def test_every_make_target_that_is_shown_is_a_target(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = re.findall(r"(?:`|\$ )make ([a-z]+)", document.read_text())
    assert set(shown) <= targets

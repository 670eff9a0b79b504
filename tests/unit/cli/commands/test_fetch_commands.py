"""`magnus model convert` says in one line why it makes no directory, and leaves none."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.commands.fetch_commands import model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "model.gguf"
    made.write_bytes(b"GGUF")
    return made


def test_the_package_that_is_missing_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    done = CliRunner().invoke(model, ["convert", str(file), str(file.parent / "made")])
    assert done.exit_code == 1
    assert "pip install gguf" in done.output
    assert [*file.parent.iterdir()] == [file]


def test_a_directory_that_is_there_is_left_as_it_is(file: Path) -> None:
    done = CliRunner().invoke(model, ["convert", str(file), str(file.parent)])
    assert done.exit_code == 1
    assert "exists already: name another directory" in done.output

"""The installed command as a process: settings, exit statuses, what it says of mistakes."""

import os
import subprocess
from pathlib import Path

from cli.hosting.process_commands import BIN


def magnus(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "magnus"), *arguments]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)


def test_a_misspelt_setting_ends_any_command_with_one_line(tmp_path: Path) -> None:
    done = magnus("status", cwd=tmp_path, MAGNUS_POLICI="vs")
    assert done.returncode == 2
    assert done.stderr == "magnus: unknown setting MAGNUS_POLICI; did you mean MAGNUS_POLICY?\n"


def test_a_bad_value_names_its_variable(tmp_path: Path) -> None:
    done = magnus("status", cwd=tmp_path, MAGNUS_PORT="many")
    assert done.returncode == 2
    assert done.stderr.startswith("magnus: MAGNUS_PORT: ")


def test_the_settings_file_of_the_working_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MAGNUS_STATE_DIR=elsewhere\n")
    done = magnus("status", cwd=tmp_path)
    assert done.returncode == 3
    assert "no `magnus up` runs in elsewhere" in done.stderr


def test_a_secret_is_never_shown_in_an_error(tmp_path: Path) -> None:
    done = magnus("up", cwd=tmp_path, MAGNUS_API_KEY="the-secret", MAGNUS_PORT="-1")
    assert done.returncode == 2
    assert "the-secret" not in done.stderr

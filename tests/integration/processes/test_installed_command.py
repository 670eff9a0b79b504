"""The installed command as a process: settings, exit statuses, what it says of mistakes."""

import os
import subprocess
from pathlib import Path

from cli.hosting.process_commands import BIN


def magnus(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "magnus"), *arguments]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)


def test_the_settings_file_of_the_working_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MAGNUS_STATE_DIR=elsewhere\n")
    done = magnus("status", cwd=tmp_path)
    assert done.returncode == 3
    assert "no `magnus up` runs in elsewhere" in done.stderr

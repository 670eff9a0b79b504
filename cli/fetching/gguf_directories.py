"""Converts each GGUF file once, into a directory beside it; `settings.py` puts the directory in the file's place."""

import fcntl
import json
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import click

from cli.fetching.known_models import RECORD
from cli.hosting.process_commands import BIN
from cli.output import WrongSetting
from settings import CONVERTED, GGUF

CONVERT = (str(BIN / "magnus"), "model", "convert")  # run as a process of its own, because it loads torch
HASHED_BYTES = 2**20  # at either end of a file, which begins with names and shapes, ends with weights. Not tuned


def convert_once(model: str, command: Sequence[str] = CONVERT) -> None:
    """Makes the directory of a GGUF file by `command`, or waits while another process does. Raises WrongSetting."""
    directory = Path(model)
    file = directory.parent.parent / f"{directory.name}{GGUF}"
    if directory.parent.name != CONVERTED or not file.is_file():
        return
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if directory.is_dir():
                if recorded(directory) == fingerprint(file):
                    return
                raise WrongSetting(f"MAGNUS_MODEL: {directory} was made of another {file.name}: move it away")
            click.echo(f"magnus: converting {file}, once, into {directory} …", err=True)
            done = subprocess.run((*command, str(file), str(directory)), capture_output=True, text=True)  # noqa: S603
    except OSError as error:
        raise WrongSetting(f"MAGNUS_MODEL: {error.filename or file}: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        why = last.removeprefix("Error: ").removeprefix("magnus: ")
        raise WrongSetting(f"MAGNUS_MODEL: {file} cannot be converted: {why}")


def fingerprint(file: Path) -> str:
    """Returns a digest of a file's size, its beginning and its end."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        digest = sha256(str(size).encode() + opened.read(HASHED_BYTES))
        opened.seek(max(0, size - HASHED_BYTES))
        digest.update(opened.read())
    return digest.hexdigest()


def record(file: Path, directory: Path) -> None:
    """Stores the fingerprint of the file from which a directory was made."""
    (directory / RECORD).write_text(json.dumps({"file": file.name, "fingerprint": fingerprint(file)}) + "\n")


def recorded(directory: Path) -> str | None:
    """Returns the stored fingerprint of the file from which a directory was made, or None if there is no record."""
    try:
        found = json.loads((directory / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return found.get("fingerprint") if isinstance(found, dict) else None

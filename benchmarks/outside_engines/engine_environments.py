"""Builds the environments of vLLM and llama.cpp, whose packages conflict with ours, and of Triton: `make engines`.

The files `vllm.txt`, `llamacpp.txt` and `triton.txt` beside this one pin every package. torchvision, torchaudio and
torchcodec are left out: the versions that vLLM asks for do not fit its torch, and text does not need them. Triton comes
with torch for GPUs; beside the torch of CPUs its interpreter computes the kernels of GPUs, for tests. An environment
that was built from the same pins is kept; an incomplete one is built again.
"""

import hashlib
import shutil
import subprocess
import time
import venv
from pathlib import Path

import click

from cli.output import CommandFailed

HERE = Path(__file__).parent
ENGINES_DIR = HERE.parents[1] / ".magnus" / "engines"
RECORD = "magnus-engine.sha256"  # this file is written last, so that an environment without it is incomplete
NEEDED_BYTES = {
    "vllm": 6 * 10**9,
    "llamacpp": 5 * 10**8,
    "triton": 2 * 10**9,
}  # the environments take 2.3, 0.2 and 1 GB; pip needs the rest to unpack packages


def engine_python(engine: str) -> Path:
    """Return the Python of an engine's environment; raises CommandFailed if it was not built from the current pins."""
    if not is_built(engine):
        raise CommandFailed(f"the environment of {engine} is not built: run `make engines`")
    return ENGINES_DIR / engine / "bin" / "python"


def is_built(engine: str) -> bool:
    """Return whether the environment was built from the current pins."""
    record = ENGINES_DIR / engine / RECORD
    return record.exists() and record.read_text() == _digest(engine)


def build(engine: str) -> None:
    """Install the pinned packages into a new environment; pip shows its progress. Raises CommandFailed."""
    directory, pins = ENGINES_DIR / engine, HERE / f"{engine}.txt"
    shutil.rmtree(directory, ignore_errors=True)
    ENGINES_DIR.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(ENGINES_DIR).free
    if free < NEEDED_BYTES[engine]:
        raise CommandFailed(
            f"{ENGINES_DIR} has {free / 1e9:.1f} GB free, {engine} needs {NEEDED_BYTES[engine] / 1e9:.1f} GB"
        )
    venv.create(directory, with_pip=True)
    torch = [line for line in pins.read_text().splitlines() if line.startswith("torch==")]
    if torch:  # torch's dependencies are not pinned, because they differ between its builds
        _pip(engine, directory, *torch)
    _pip(engine, directory, "--no-deps", "--requirement", str(pins))
    (directory / RECORD).write_text(_digest(engine))


def _digest(engine: str) -> str:
    return hashlib.sha256((HERE / f"{engine}.txt").read_bytes()).hexdigest()


def _pip(engine: str, directory: Path, *wanted: str) -> None:
    options = ("--disable-pip-version-check", "--no-input", "--only-binary=:all:")
    pip = subprocess.run([str(directory / "bin" / "python"), "-m", "pip", "install", *options, *wanted])
    if pip.returncode != 0:
        raise CommandFailed(
            f"pip could not install {engine} (its message is above). It needs the package index, or without network a "
            "folder of wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=/folder make engines"
        )


@click.command()
@click.argument("engines", nargs=-1, type=click.Choice(sorted(NEEDED_BYTES)))
def main(engines: tuple[str, ...]) -> None:
    """Build the environments of these ENGINES, or of all that are missing."""
    for engine in engines or tuple(sorted(NEEDED_BYTES)):
        if is_built(engine):
            click.echo(f"{engine} is already in {ENGINES_DIR / engine}")
            continue
        click.echo(f"{engine}: installing into {ENGINES_DIR / engine}")
        began = time.monotonic()
        build(engine)
        click.echo(f"{engine}: ready after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

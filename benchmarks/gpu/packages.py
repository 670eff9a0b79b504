"""Downloads the wheels that a machine with a GPU lacks into one folder: what the service needs beside torch.

    python -m benchmarks.gpu.packages DIR [--python 3.12] [--there NAME …]

The packages are those of `dependencies` in pyproject.toml with all that they need, in the versions installed here. Such
machines have torch, transformers and the numeric packages, which are large and are left out.
"""

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu.phase_plan import ROOT

THERE = ("numpy", "scipy", "scikit-learn", "tokenizers", "huggingface-hub", "torch", "transformers", "safetensors")
MOST_BYTES = 60 * 2**20  # what a lent machine takes beside the repository


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--python", "version", default="3.12", show_default=True, help="Python's version on that machine.")
@click.option("--there", multiple=True, help="Further packages that the machine has.")
def main(directory: Path, version: str, there: tuple[str, ...]) -> None:
    """Download the wheels and print their size; fails if they are larger than MOST_BYTES."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = needed(project["dependencies"], {*map(canonicalize_name, (*THERE, *there))})
    pins = [f"{name}=={number}" for name, number in sorted(wanted.items())]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version")
    subprocess.run([*pip, version, "--dest", str(directory), *pins], check=True)
    for wheel in directory.glob("*.whl"):
        recompress(wheel)
    size = sum(wheel.stat().st_size for wheel in directory.glob("*.whl"))
    click.echo(f"{len(pins)} wheels, {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        raise click.ClickException(f"more than {MOST_BYTES / 2**20:.0f} MiB")


def recompress(wheel: Path) -> None:
    """Write a wheel anew with LZMA, which pip reads, too: all wheels together were 46 instead of 57 MiB."""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(wheel.with_suffix(".new"), "w") as new:
        for member in old.infolist():
            new.writestr(member, old.read(member), zipfile.ZIP_LZMA)
    wheel.with_suffix(".new").replace(wheel)


def needed(requirements: list[str], there: set[str]) -> dict[str, str]:
    """Return name and installed version of the packages that these requirements need, without those that are there."""
    found: dict[str, str] = {}
    asked = [*map(Requirement, requirements)]
    while asked:
        requirement = asked.pop()
        name, extras = canonicalize_name(requirement.name), ("", *requirement.extras)
        if name in there or (name in found and extras == ("",)):
            continue
        installed = distribution(name)
        found[name] = installed.version
        further = map(Requirement, installed.requires or ())
        asked += [one for one in further if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]
    return found


if __name__ == "__main__":
    main()

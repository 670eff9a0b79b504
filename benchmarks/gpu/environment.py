"""Makes what a machine without network lacks: unpacked wheels, and an environment with the command `magnus`."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from benchmarks.gpu.phase_plan import ROOT

MAGNUS = """#!{python}
import sys

sys.path.insert(0, {root!r})
from cli.main import main

main()
"""


def unpacked(packages: Path, target: Path) -> Path:
    """Install a folder's wheels into `target` and return it; a folder without wheels has packages and is returned."""
    wheels = sorted(map(str, packages.glob("*.whl")))
    if not wheels:
        return packages.absolute()
    if not target.exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target")
        subprocess.run([*pip, str(target), *wheels], check=True, stdout=sys.stderr)
    return target


def environment_with_magnus(directory: Path) -> Path:
    """Make an environment over this Python's packages, in which this tree's `magnus` is installed; returns its Python.

    Services start their workers by the command `magnus` beside their Python.
    """
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, symlinks=True)
        own = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(directory), "platbase": str(directory)}))
        known = [path for path in sys.path if path.endswith("-packages")]
        (own / "of_the_machine.pth").write_text("\n".join(known) + "\n")
    magnus = directory / "bin" / "magnus"
    magnus.write_text(MAGNUS.format(python=python, root=str(ROOT)))
    magnus.chmod(0o755)
    return python

"""What pyproject.toml cannot say: the wheel holds all packages of this repository inside a single one.

Their names (`models`, `tasks`, `settings`) are those of many other projects. So the wheel brings one name alone,
`magnus_service`, and `cli/entry_point.py` puts that directory first on the path of our own processes.
"""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = (
    "cli",
    "webapp",
    "tasks",
    "protocol",
    "processes",
    "scheduling",
    "learning",
    "inference",
    "models",
    "migrations",
)
INCLUDED = [pattern for folder in FOLDERS for pattern in (folder, f"{folder}.*")]


class WithoutThisFile(build_py):  # type: ignore[misc]  # setuptools is untyped here
    """Builds the package without this script, which lies in the package's directory but is no module of it."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Returns (package, module, file) of each module."""
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [module for module in found if module[1] != "setup"]


setup(
    packages=["magnus_service", *(f"magnus_service.{name}" for name in find_packages(include=INCLUDED))],
    package_dir={"magnus_service": "."},
    cmdclass={"build_py": WithoutThisFile},
)

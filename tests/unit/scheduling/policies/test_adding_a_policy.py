"""The policy of docs/adding-a-policy.md passes the gates once it is added to a copy of the code as the guide says."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[4]
GUIDE = (ROOT / "docs" / "adding-a-policy.md").read_text()
POLICY, SIMULATION, UNIT_TESTS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
(ENTRY,) = re.findall(r"```text\n(.*?)```", GUIDE, flags=re.DOTALL)
MODULE = "scheduling/policies/shortest_first.py"
TESTS = "tests/unit/scheduling/policies/test_every_policy.py"
OWN_TESTS = "tests/unit/scheduling/policies/test_shortest_first.py"
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages in which the guide's policy has been added."""
    tree = tmp_path_factory.mktemp("tree")
    for package in (*PACKAGES, "tests/unit/scheduling"):
        only_python = shutil.ignore_patterns("__pycache__", "bundled", "static", "templates")
        shutil.copytree(ROOT / package, tree / package, ignore=only_python)
    for file in (*ROOT.glob("*.py"), ROOT / "pyproject.toml"):
        shutil.copy(file, tree)
    assert f"`{Path(MODULE).name}`" in GUIDE
    if not (tree / MODULE).exists():  # whoever tries the guide has added it already
        add_policy(tree)
    return tree


def add_policy(tree: Path) -> None:
    """Adds the guide's policy as the guide says."""
    (tree / MODULE).write_text(POLICY)
    (tree / OWN_TESTS).write_text(UNIT_TESTS)
    factory = tree / "scheduling/sharing/policy_factory.py"
    imported = factory.read_text().replace(
        "from scheduling.policies.vanilla",
        "from scheduling.policies.shortest_first import ShortestFirst\nfrom scheduling.policies.vanilla",
    )
    factory.write_text(re.sub(r"^(POLICIES: .*\n)", lambda line: line[1] + ENTRY, imported, flags=re.MULTILINE))
    settings = tree / "settings.py"
    settings.write_text(
        settings.read_text().replace('PolicyName = Literal["vs"', 'PolicyName = Literal["shortest", "vs"')
    )


def run_in(tree: Path, *command: str) -> str:
    """Runs a tool of this environment in the copy; returns what it printed."""
    tool = str(Path(sysconfig.get_path("scripts"), command[0]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *command[1:]] if command[0] == "pytest" else [tool, *command[1:]],
        cwd=tree,
        env=environment | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_it_is_formatted_and_linted(tree: Path) -> None:
    changed = (MODULE, "scheduling/sharing/policy_factory.py", "settings.py")
    run_in(tree, "ruff", "check", MODULE, OWN_TESTS)
    run_in(tree, "ruff", "format", "--check", OWN_TESTS)
    run_in(tree, "ruff", "check", "--fix", *changed)  # `make fmt` puts the import into its place
    run_in(tree, "ruff", "format", "--check", *changed)


def test_its_types_are_right(tree: Path) -> None:
    run_in(tree, "mypy", "--config-file", "pyproject.toml", MODULE, "scheduling/sharing/policy_factory.py")


def test_its_imports_are_allowed(tree: Path) -> None:
    run_in(tree, "lint-imports", "--no-cache")


def test_it_passes_the_tests_of_every_policy(tree: Path) -> None:
    ran = run_in(tree, "pytest", TESTS, "-k", "shortest", "-p", "no:cacheprovider", "-p", "no:xdist")
    tests = len(re.findall("^@EVERY_POLICY$", (ROOT / TESTS).read_text(), flags=re.MULTILINE))
    assert f"{tests} passed" in ran


def test_its_own_tests_and_those_of_every_policy_reach_each_of_its_branches(tree: Path) -> None:
    covered = ("--cov", "scheduling.policies.shortest_first", "--cov-branch", "--cov-fail-under", "100")
    run_in(tree, "pytest", OWN_TESTS, TESTS, "-k", "shortest", *covered, "-p", "no:cacheprovider", "-p", "no:xdist")


def test_its_simulation_serves_every_request(tree: Path) -> None:
    (tree / "simulation.py").write_text(SIMULATION + "\nassert len(trace.answers) == 20\n")
    ran = subprocess.run([sys.executable, "simulation.py"], cwd=tree, capture_output=True, text=True)
    assert "requests/s" in ran.stdout, ran.stderr

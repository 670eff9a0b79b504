"""No package imports another in a circle, and none its own folders while they import it.

import-linter's `acyclic_siblings` in pyproject.toml compares modules and folders that lie side by side; here the loose
modules of a package count as one part, beside its folders.
"""

import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cli", "webapp", "tasks", "protocol", "processes", "scheduling", "learning", "inference", "models")
PROCESSES = (
    "processes.celery.beat_process",
    "tasks.planning.planner_process",
    "tasks.prediction.predictor_process",
    "tasks.chores.chores_process",
    "tasks.training.trainer_process",
    "tasks.serving.remote_worker",
)
# modules of ours, each of which costs a starting process some milliseconds; the last ones came with the shortest
# answers of formats, thinking's budgets, the order of a queue, off-peak hours, which the settings check, and lengths of
# rows in the snapshot; then promises, their book, and forecasts for it
MOST_OF_CHORES = 128


@cache
def import_graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def package_of(module: str) -> str:
    return module if (ROOT / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


def test_no_package_imports_another_in_a_circle_nor_its_own_folders() -> None:
    graph = import_graph()
    imported: dict[str, set[str]] = {}
    for module in graph.modules:
        used = map(package_of, graph.find_modules_directly_imported_by(module))
        imported.setdefault(package_of(module), set()).update(used)
    others = {package: used - {package} for package, used in imported.items()}
    TopologicalSorter(others).prepare()  # raises CycleError, which names the circle


def test_the_chores_process_loads_no_web_server_and_few_modules() -> None:
    script = """
import sys, tasks.chores.chores_process
print(*sys.modules)
print(*(getattr(module, "__file__", None) for module in list(sys.modules.values())), sep="\\n")
"""
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names, *files = said.splitlines()
    assert not {"flask", "werkzeug", "torch", "sklearn"} & set(names.split())
    ours = [one for one in map(Path, files) if one.is_relative_to(ROOT) and ".venv" not in one.parts]
    assert len([one for one in ours if one.name != "__init__.py"]) <= MOST_OF_CHORES


@pytest.mark.parametrize("module", ["processes.celery.celery_app", "processes.celery.flower_app", *PROCESSES])
def test_importing_a_process_reads_no_settings_and_opens_no_connection(module: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        cwd=ROOT,
        env={"MAGNUS_UNKNOWN": "1"},
        capture_output=True,
        text=True,
    )
    assert (said.returncode, said.stderr) == (0, "")

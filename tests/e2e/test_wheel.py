"""The wheel in an environment of its own, used in a directory whose modules have our names; the base install alone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.integration.stub_engine_server import StubServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
FOLDERS = sorted({file.parent.name for file in ROOT.glob("*/__init__.py")} - {"benchmarks", "tests"})
FILES = ("*.py", "pyproject.toml", "README.md", "LICENSE", "Procfile", ".env.example")
MOST_BASE_BYTES = 450e6  # of 423e6: scipy 114, Postgres 68, numpy 57, scikit-learn 32, SQLAlchemy 18, cryptography 15
HOSTILE = 'raise RuntimeError("a module of the user\'s was imported")\n'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the repository because setuptools writes beside the sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for pattern in FILES:
        for file in ROOT.glob(pattern):
            shutil.copy(file, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", str(built), str(source)], check=True)
    (file,) = built.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and the dependencies of this one; this one's Magnus is not among them."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    paths = {"base": str(directory), "platbase": str(directory)}
    dependencies = Path(sysconfig.get_path("purelib", vars=paths)) / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, env=without_python_path())
    return directory


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory of somebody else's project, with files and folders of our names."""
    for name in ("settings", "tasks", "celery_config", "celeryconfig", "json_logs", "redis", "torch", "flower", "wsgi"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    (tmp_path / "gunicorn.conf.py").write_text(HOSTILE)
    for name in ("models", "webapp", "scheduling", "inference", "learning", "cli", "migrations"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(HOSTILE)
    return tmp_path


def without_python_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def magnus(environment: Path, *arguments: str, cwd: Path, script: str = "magnus") -> subprocess.CompletedProcess[str]:
    settings = {"MAGNUS_STATE_DIR": str(cwd / "state"), "MAGNUS_WORKERS": "1"}
    command = [str(environment / "bin" / script), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=without_python_path() | settings, capture_output=True, text=True, timeout=500
    )


def test_it_brings_a_single_name_and_no_test_or_build_script(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"magnus_service"}
    assert not [name for name in names if "setup.py" in name or "tests/" in name]
    for file in (
        ".env.example",
        "Procfile",
        "inference/bundled/model.safetensors",
        "webapp/dashboard/templates/base.html",
    ):
        assert f"magnus_service/{file}" in names


def test_every_module_of_the_repository_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = [file.relative_to(ROOT) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    assert [str(module) for module in modules if f"magnus_service/{module}" not in names] == []


@pytest.mark.timeout(120)
def test_help_settings_and_doctor_work_beside_modules_of_our_names(environment: Path, hostile: Path) -> None:
    shown = magnus(environment, "--help", cwd=hostile)
    assert (shown.returncode, shown.stderr) == (0, "")
    # what uvx runs if no script is named
    assert magnus(environment, "--help", cwd=hostile, script="magnus-llm").stdout == shown.stdout
    assert magnus(environment, "settings", cwd=hostile).stdout == (ROOT / ".env.example").read_text()
    found = magnus(environment, "doctor", "--json", cwd=hostile)
    assert found.stderr == ""
    assert '"check": "torch"' in found.stdout
    assert "does not load" not in found.stdout


@pytest.mark.timeout(600)
def test_a_demo_runs_beside_modules_of_our_names(environment: Path, hostile: Path) -> None:
    done = magnus(environment, "demo", "--requests", "20", cwd=hostile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20" in done.stdout


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what it depends on, no extra, from the package index."""
    directory = tmp_path_factory.mktemp("base")
    venv.create(directory, with_pip=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run(
        [*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel)], check=True, env=without_python_path()
    )
    return directory


@pytest.mark.timeout(900)
def test_the_base_install_is_small_and_has_no_torch(base: Path) -> None:
    packages = sysconfig.get_path("purelib", vars={"base": str(base), "platbase": str(base)})
    installed = {one.name: one for one in distributions(path=[packages]) if one.name not in ("pip", "setuptools")}
    files = [Path(file.locate()) for one in installed.values() for file in one.files or () if file.suffix != ".pyc"]
    assert "magnus-llm" in installed
    assert not {"torch", "transformers", "sentence-transformers", "safetensors"} & installed.keys()
    assert sum(file.stat().st_size for file in files) <= MOST_BASE_BYTES


@pytest.mark.timeout(600)
def test_the_base_install_serves_requests_in_front_of_a_server_of_others(base: Path, tmp_path: Path) -> None:
    refused = magnus(base, "up", cwd=tmp_path)
    assert (refused.returncode, "needs the extra engine" in refused.stderr) == (2, True)
    server = StubServer()
    settings = {
        "MAGNUS_STATE_DIR": str(tmp_path / "state"),
        "MAGNUS_MODEL": str(ROOT / "inference" / "bundled"),  # the stub tokenizes no text
    }
    requests = [{"instructions": "Repeat the text.", "input": f"apple river {number}"} for number in range(50)]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(one) + "\n" for one in requests))
    environment = without_python_path() | settings
    command = [
        str(base / "bin" / "magnus"),
        "up",
        "--engine",
        server.url,
        "--port",
        "0",
        "--flower-port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            assert "url" in json.loads(up.stdout.readline())
            done = magnus(base, "submit", "--wait", "--file", "requests.jsonl", "--json", cwd=tmp_path)
        finally:
            up.terminate()
            server.die()
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == ["completed"] * 50
    assert len(server.prompts) == 50

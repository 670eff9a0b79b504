"""deploy/ says what there is: every command exists, every variable is a setting, systemd accepts the units."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cli.commands.run_commands import PROCESSES
from cli.main import commands
from settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CLUSTER = DEPLOY / "kubernetes" / "service"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
IMAGES = {"magnus": "control-plane", "magnus-engine": "engine"}  # and their targets in the Dockerfile
NAMES = {f"MAGNUS_{name.upper()}" for name in Settings.model_fields}
every_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def ours() -> dict[str, Any]:
    """The compose services that run Magnus."""
    return {name: service for name, service in compose()["services"].items() if service["image"] in IMAGES}


def pods() -> dict[str, dict[str, Any]]:
    """What the cluster's manifests say of the pods of each process themselves; kustomize adds the rest."""
    objects = [one for path in sorted(CLUSTER.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]
    makers = [one for one in objects if one["kind"] in ("Deployment", "Job") and one["metadata"]["name"] != "any"]
    return {one["metadata"]["name"].removeprefix("magnus-"): one["spec"]["template"]["spec"] for one in makers}


def value(unit: Path, name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)
    return str(found)


def parses(words: list[str]) -> bool:
    """Whether `magnus` takes this command line; nothing is run."""
    with click.Context(commands) as context:
        name, command, rest = commands.resolve_command(context, list(words))
        assert command is not None
        command.make_context(name, rest)
    return True


@every_unit
def test_a_unit_runs_a_command_that_exists(unit: Path) -> None:
    program, *words = shlex.split(value(unit, "ExecStart"))
    assert program == "/opt/magnus/bin/magnus"
    assert parses(words)


def test_a_late_postgres_delays_the_units_and_fails_none() -> None:
    migrate = DEPLOY / "systemd" / "magnus-migrate.service"
    assert value(migrate, "ExecStart").endswith("migrate --wait")
    for unit in UNITS:
        assert not re.search(r"^(Requires|Requisite|BindsTo)=", unit.read_text(), re.MULTILINE)
        assert unit == migrate or "magnus-migrate.service" in value(unit, "Wants")


def test_there_is_a_unit_for_every_process() -> None:
    kinds = {unit.stem.removeprefix("magnus-").removesuffix("@") for unit in UNITS}
    assert kinds == {*PROCESSES, "worker", "migrate"}


@pytest.mark.parametrize("service", ours().values(), ids=ours())
def test_a_container_runs_a_command_that_exists(service: dict[str, Any]) -> None:
    assert parses(service["command"])


def test_the_containers_are_a_whole_service() -> None:
    assert ours().keys() == {*PROCESSES, "worker", "migrate"} - {"flower"}


@pytest.mark.parametrize("pod", pods().values(), ids=pods())
def test_a_pod_runs_a_command_that_exists(pod: dict[str, Any]) -> None:
    assert all(parses(container["args"]) for container in pod["containers"])


def test_the_pods_are_a_whole_service() -> None:
    assert pods().keys() == {*PROCESSES, "worker", "migrate"} - {"flower"}


def test_a_pod_is_not_killed_before_its_worker_has_given_its_work_back() -> None:
    settings = dict(line.split("=") for line in (CLUSTER / "settings.env").read_text().splitlines() if "=" in line)
    assert pods()["worker"]["terminationGracePeriodSeconds"] >= 2 * float(settings["MAGNUS_STOP_S"])


def test_every_variable_is_a_setting() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    named = {name for path in files for name in re.findall(r"\bMAGNUS_[A-Z_]+", path.read_text())}
    assert named
    assert named <= NAMES


def test_no_process_but_the_web_is_reached_from_outside_and_none_is_root() -> None:
    assert [name for name, service in compose()["services"].items() if "ports" in service] == ["web"]
    assert "\nUSER 10001:10001\n" in (DEPLOY / "Dockerfile").read_text()
    assert all(service["cap_drop"] == ["ALL"] and service["read_only"] for service in ours().values())


def test_the_image_has_what_the_wheel_is_built_of() -> None:
    kept = set(re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    (folders,) = re.findall(r"^FOLDERS = \(([^)]*)\)$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert set(re.findall(r'"(\w+)"', folders)) <= kept
    assert {"*.py", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "Procfile", ".env.example"} <= kept


def test_only_the_workers_of_our_own_engine_have_the_image_with_torch() -> None:
    base, engine = (DEPLOY / "Dockerfile").read_text().split(" AS engine-install")
    assert "[engine]" not in base
    assert "[engine]" in engine
    for name, service in ours().items():
        assert service["image"] == ("magnus-engine" if name == "worker" else "magnus")
        assert service["build"]["target"] == IMAGES[service["image"]]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="a system without systemd has no use for units")
def test_systemd_accepts_the_units_and_finds_them_hardened(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "systemd", tmp_path, dirs_exist_ok=True)
    for unit in tmp_path.glob("*.service"):  # the program of an installed Magnus is not there
        unit.write_text(unit.read_text().replace("/opt/magnus/bin/magnus", "/bin/true"))
    units = [str(unit) for unit in sorted(tmp_path.glob("magnus*.*")) if unit.is_file()]
    search = {"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"}
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(verify, env=search, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # 10 is a service that may do everything
    hardened = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(tmp_path / "magnus-web.service")]
    done = subprocess.run(hardened, env=search, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_proxy_hides_every_address_that_begins_like_that_of_the_figures() -> None:
    hidden = re.findall(r"location \^~ (\S+) \{[^}]*deny all;", (DEPLOY / "nginx.conf").read_text())
    assert hidden == ["/metrics"]

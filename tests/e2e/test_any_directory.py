"""The service starts in any directory of a user's, whatever lies there."""

from pathlib import Path

import pytest

from cli.api_client import Client
from settings import BUNDLED_MODEL
from tests.e2e.whole_service import running_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

OUR_NAMES = ("settings", "models", "tasks", "scheduling", "webapp", "celery_config", "redis", "torch")


def test_modules_of_our_names_in_it_are_not_imported_and_relative_paths_hold(tmp_path: Path, monkeypatch):
    for name in OUR_NAMES:
        (tmp_path / f"{name}.py").write_text('raise RuntimeError("a module of the user\'s was imported")\n')
    (tmp_path / "my-model").symlink_to(BUNDLED_MODEL)
    monkeypatch.chdir(tmp_path)
    with running_up("--model", "my-model", "--workers", "1") as up, Client(up.url, up.key) as client:
        created = client.create({"model": client.model(), "instructions": "Copy the text.", "input": "river"})
        assert client.model() == "my-model"
        assert client.wait(created["id"], timeout_s=60.0)["status"] == "completed"

"""The examples of docs/api.md, run as they stand there: curl, Python and, where Node is, JavaScript."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.documented_clients import ROOT, Block, blocks_of
from tests.e2e.whole_service import Up

pytestmark = pytest.mark.timeout(300)

NODE = shutil.which("node")  # no part of the product needs it, so a machine may be without
EXAMPLES = [
    block for block in blocks_of((ROOT / "docs" / "api.md").read_text())["run"] if NODE or block.language != "js"
]


def test_the_document_has_examples_in_every_language() -> None:
    documented = blocks_of((ROOT / "docs" / "api.md").read_text())["run"]
    assert {block.language for block in documented} == {"sh", "python", "js"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda block: block.language)
def test_an_example_runs_as_it_stands(example: Block, up: Up) -> None:
    try:
        ran = subprocess.run(
            example.command(Path(sys.executable), NODE or ""),
            env=os.environ | {"MAGNUS_URL": up.url, "MAGNUS_API_KEY": up.key, "OPENAI_LOG": "info"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired as slow:
        pytest.fail(f"not done after {slow.timeout} s, having asked:\n{slow.stderr!r}\n{up.errors()}")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    assert '"error":{' not in ran.stdout.replace(" ", "")

"""Batches on a whole service: served although processes are killed, run by the command, as the documents say."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types import Batch

from cli.api_client import Client
from inference.toy.toy_applications import APPLICATIONS
from tests.e2e.whole_service import MAGNUS, Up, eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

MODEL = "bundled"
KILLS, LINES = 3, 2000
DOUBLE = APPLICATIONS["double"].instruction
API_DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def client(up: Up) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key) as client:
        yield client


def line(name: str, words: str, application: str = "double") -> str:
    body = {"model": MODEL, "instructions": DOUBLE, "input": words, "metadata": {"application": application}}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/responses", "body": body})


def create(client: OpenAI, lines: list[str]) -> Batch:
    file = client.files.create(file=("lines.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")


def answers(client: OpenAI, batch: Batch) -> list[tuple[str, str]]:
    assert batch.output_file_id is not None
    records = map(json.loads, client.files.content(batch.output_file_id).iter_lines())
    return [(one["custom_id"], one["response"]["body"]["output"][0]["content"][0]["text"]) for one in records]


def chores_of(up: Up) -> int | None:
    """The process id of `chores`; None while it is being started again."""
    entries = json.loads((up.state_dir / "processes.json").read_text())
    return next((entry["pid"] for entry in entries if entry["name"] == "chores"), None)


def ended(client: OpenAI, batch: Batch) -> Batch:
    eventually(lambda: client.batches.retrieve(batch.id).status in ENDED, within_s=300)
    return client.batches.retrieve(batch.id)


def test_a_batch_is_served_to_its_end_although_the_process_that_looks_after_it_is_killed(
    up: Up, client: OpenAI
) -> None:
    names = [f"line {n}" for n in range(LINES)]
    batch = create(client, [line(name, "river", "killed") for name in names])
    for _ in range(KILLS):
        killed = up.pid("chores")
        before = client.batches.retrieve(batch.id)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda killed=killed: chores_of(up) not in (killed, None))  # type: ignore[misc]
        eventually(
            lambda before=before: (
                client.batches.retrieve(batch.id) != before  # type: ignore[misc]
                or client.batches.retrieve(batch.id).status in ENDED
            )
        )
    done = ended(client, batch)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed) == (LINES, LINES)
    assert sorted(answers(client, done)) == sorted((name, "river river") for name in names)
    with Client(up.url, up.key) as magnus:
        assert sum(1 for _ in magnus.responses(application="killed")) == LINES


def test_the_command_runs_a_file_and_takes_up_a_run_that_was_interrupted(up: Up, tmp_path: Path) -> None:
    lines, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text("\n".join(line(f"r{n}", "stone") for n in range(400)))
    environment = {**os.environ, "MAGNUS_URL": up.url, "MAGNUS_API_KEY": up.key}
    dry = [MAGNUS, "batch", "run", "--dry-run", str(lines), "--json"]
    tried = json.loads(subprocess.run(dry, env=environment, capture_output=True, text=True, check=True).stdout)
    assert (tried["request_counts"]["total"], tried["magnus"]["dry_run"]) == (400, True)
    command = [MAGNUS, "batch", "run", str(lines), str(output)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
        state = tmp_path / "out.jsonl.state"
        eventually(lambda: state.exists() and json.loads(state.read_text())["batch"])
        first.send_signal(signal.SIGINT)
        _, said = first.communicate()
    assert first.returncode == 130
    batch_id = json.loads(state.read_text())["batch"]
    assert f"{batch_id} goes on" in said
    second = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(second.stdout)["id"] == batch_id
    assert {json.loads(one)["custom_id"] for one in output.read_text().splitlines()} == {f"r{n}" for n in range(400)}
    assert not state.exists()
    listed = subprocess.run(
        [MAGNUS, "batch", "list", "--json"], env=environment, capture_output=True, text=True, check=True
    )
    assert batch_id in [json.loads(one)["id"] for one in listed.stdout.splitlines()]
    shown = subprocess.run(
        [MAGNUS, "batch", "show", batch_id], env=environment, capture_output=True, text=True, check=True
    )
    assert "completed" in shown.stdout
    cancelled = subprocess.run(
        [MAGNUS, "batch", "cancel", batch_id, "--json"], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(cancelled.stdout)["status"] == "completed"


def test_the_document_shows_what_works(up: Up, tmp_path: Path) -> None:
    section = API_DOCUMENT.read_text().split("## Files and batches")[1].split("\n## ")[0]
    python = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    (shell,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    environment = {**os.environ, "OPENAI_BASE_URL": f"{up.url}/v1", "OPENAI_API_KEY": up.key}
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    said = subprocess.run([sys.executable, "-c", f"import json, time\n{python}"], **run, check=False)  # type: ignore[call-overload]
    assert said.returncode == 0, said.stderr
    first, second, expected = said.stdout.splitlines()
    assert [first.split()[0], second.split()[0]] == ["r0", "r1"]
    assert re.fullmatch(r"(None|\d+(\.\d+)?) \[.*\]", expected)
    said = subprocess.run(["bash", "-e", "-c", shell], **run, check=False)  # type: ignore[call-overload]
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["status"] in ("validating", "in_progress", "finalizing", "completed")

"""Two enlarged copies of the bundled model on one worker of a whole service, with chats on each."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI

from benchmarks.inputs.changed_models import enlarged_model
from tests.e2e.whole_service import MAGNUS, Up, eventually, running_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
MODELS = ("bundled-8x", "bundled-20x")
WORDS = ["apple river", "cloud house tree", "green stone", "paper window lamp"]


@pytest.fixture(scope="module")
def two_models_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    directory = tmp_path_factory.mktemp("models")
    small, large = (enlarged_model(size, directory) for size in ("8x", "20x"))
    with running_up("--workers", "1", "--model", str(small), MAGNUS_MODELS=str(large), MAGNUS_WAIT_S="300") as up:
        yield up


@pytest.fixture(scope="module")
def client(two_models_up: Up) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{two_models_up.url}/v1", api_key=two_models_up.key, timeout=300) as client:
        yield client


def repeated(client: OpenAI, model: str, words: str) -> str | None:
    messages = [{"role": "system", "content": "Repeat the text."}, {"role": "user", "content": words}]
    return client.chat.completions.create(model=model, messages=messages).choices[0].message.content  # type: ignore[arg-type]


def test_a_chat_with_each_model_is_answered_and_the_status_says_what_is_loaded(
    client: OpenAI, two_models_up: Up
) -> None:
    assert {one.id for one in client.models.list()} >= set(MODELS)
    for model in (*MODELS, MODELS[0]):
        assert repeated(client, model, WORDS[0]) == WORDS[0]
    environment = os.environ | {"MAGNUS_URL": two_models_up.url, "MAGNUS_API_KEY": two_models_up.key}
    said = subprocess.run([MAGNUS, "status", "--json"], env=environment, capture_output=True, text=True, check=True)
    assert f'"model": "{MODELS[0]}"' in said.stdout
    assert '"changes": 2' in said.stdout


def test_chats_with_both_at_once_are_all_answered_although_the_worker_is_killed_in_a_change(
    client: OpenAI, two_models_up: Up
) -> None:
    def changes_to() -> str | None:
        headers = {"Authorization": f"Bearer {two_models_up.key}"}
        stats = httpx.get(f"{two_models_up.url}/v1/magnus/stats", headers=headers).json()
        return next((one["changes_to"] for one in stats["models"]), None)

    alone = {words: repeated(client, MODELS[0], words) for words in WORDS}  # both models answer alike
    asked = [(model, words) for words in WORDS for model in MODELS]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [pool.submit(repeated, client, model, words) for model, words in asked]
        eventually(changes_to)
        os.kill(two_models_up.pid("worker-1"), signal.SIGKILL)
        assert [answer.result() for answer in answers] == [alone[words] for _, words in asked]

"""The official client and a batch against a whole service with an embedding model and a cross-encoder."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from openai import OpenAI
from sentence_transformers import SentenceTransformer

from tests.e2e.whole_service import Up, eventually, running_up
from tests.integration.sentence_models import make_cross_encoder, make_sentence_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sentence_model(tmp_path_factory.mktemp("vectors"))


@pytest.fixture(scope="module")
def embedding_up(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    scores = make_cross_encoder(tmp_path_factory.mktemp("scores"))
    with running_up("--workers", "0", MAGNUS_EMBED=f"{vectors},{scores}") as up:
        yield up


@pytest.fixture(scope="module")
def client(embedding_up: Up) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{embedding_up.url}/v1", api_key=embedding_up.key) as client:
        yield client


def test_vectors_and_rankings_come_from_workers_that_magnus_up_started(
    client: OpenAI, embedding_up: Up, vectors: Path
) -> None:
    texts = ["red house", "green river cloud"]
    made = client.embeddings.create(model="sentence-model", input=texts)
    expected = np.asarray(SentenceTransformer(str(vectors), device="cpu").encode(texts))
    assert np.abs(np.array([one.embedding for one in made.data]) - expected).max() < 1e-6
    ranked = httpx.post(
        f"{embedding_up.url}/v1/rerank",
        json={"model": "cross-encoder", "query": "which river", "documents": texts},
        headers={"Authorization": f"Bearer {embedding_up.key}"},
        timeout=60,
    ).json()
    assert sorted(one["index"] for one in ranked["results"]) == [0, 1]


def test_a_batch_ends_with_every_vector_although_its_worker_is_killed(
    client: OpenAI, embedding_up: Up, vectors: Path
) -> None:
    texts = [f"red house by the river {number}" for number in range(2000)]
    lines = "".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/embeddings",
                "body": {"model": "sentence-model", "input": text, "encoding_format": "base64"},
            }
        )
        + "\n"
        for number, text in enumerate(texts)
    )
    file = client.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")

    def completed() -> int:
        found = client.batches.retrieve(batch.id)
        return 0 if found.request_counts is None else found.request_counts.completed

    eventually(lambda: completed() > 100)
    os.kill(embedding_up.pid("embed-1"), signal.SIGKILL)
    eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
    ended = client.batches.retrieve(batch.id)
    assert ended.output_file_id is not None
    results = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert {one["custom_id"] for one in results} == {str(number) for number in range(2000)}
    assert all(one["response"]["body"]["data"][0]["embedding"] for one in results)

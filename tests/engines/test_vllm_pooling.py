"""Vectors and scores by vLLM's pooling runner: those that sentence-transformers computes, also through a service."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from openai import OpenAI
from sentence_transformers import CrossEncoder, SentenceTransformer
from sqlalchemy import text
from transformers import BertForSequenceClassification

from benchmarks.outside_engines.server_processes import EngineServer, running_engine
from inference.embedding.pooling_engine import PoolingEngine
from inference.embedding.pooling_server import PoolingServer
from inference.embedding.text_model import read_text_model
from inference.embedding.vectors import unpacked
from inference.engine_requests import PoolingRequest
from models.connections.session import make_engine, make_sessions
from models.operations.fleet_use import set_drained
from request_body import Pooling
from tests.e2e.whole_service import MAGNUS, Up, eventually, running_up
from tests.engines.tested_engines import TERMS
from tests.real_model.conftest import fetched

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]  # vLLM takes minutes to start where others use the cores too
TEXTS = ("a", "The river froze while the committee argued.", "naïve 東京 🙂", "word " * 100, "longer than read " * 200)


@pytest.fixture(scope="module")
def minilm() -> Path:
    return fetched("minilm")


@pytest.fixture(scope="module")
def cross_encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layers of all-MiniLM-L6-v2 with a score of random weights; vLLM has no kernels for smaller heads."""
    directory = tmp_path_factory.mktemp("scores")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        BertForSequenceClassification.from_pretrained(minilm, num_labels=1).save_pretrained(directory / "bert")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (directory / "bert" / name).write_bytes((minilm / name).read_bytes())
    CrossEncoder(str(directory / "bert"), device="cpu", max_length=256).save_pretrained(str(directory / "scorer"))
    return directory / "scorer"


@contextmanager
def pooling(kind: str, model: Path, name: str, directory: Path) -> Iterator[EngineServer]:
    """A server that computes vectors or scores with this model."""
    terms = replace(TERMS, model=model, name=name, flags=("--runner", "pooling", "--max-model-len", "256"))
    with running_engine(kind, terms, directory) as server:  # type: ignore[arg-type]
        yield server


@pytest.fixture(scope="module", params=("vllm",))
def pooled(request: pytest.FixtureRequest, minilm: Path, tmp_path_factory) -> Iterator[EngineServer]:
    """vLLM with all-MiniLM-L6-v2."""
    with pooling(request.param, minilm, minilm.name, tmp_path_factory.mktemp("pooled")) as server:
        yield server


def test_vectors_are_those_of_the_library(pooled: EngineServer, minilm: Path) -> None:
    model = read_text_model(minilm.name, str(minilm))
    server = PoolingServer(pooled.url, None, model, 60.0)
    engine = PoolingEngine(server.encode, scores_pairs=False, pass_tokens=2048)
    tokens = [min(model.max_tokens, count) for count in model.item_tokens(TEXTS)]
    rows = [
        PoolingRequest(str(number), (text,), Pooling(tokens=(count,)))
        for number, (text, count) in enumerate(zip(TEXTS, tokens, strict=True))
    ]
    found = np.concatenate([unpacked(one.text or "", 1) for one in engine.run(rows)[0]])
    expected = np.asarray(SentenceTransformer(str(minilm), device="cpu").encode(list(TEXTS)))
    assert np.abs(found - expected).max() < 1e-5


@pytest.fixture(scope="module")
def scoring(
    pooled: EngineServer, cross_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    """Another such server with the cross-encoder."""
    with pooling(pooled.kind, cross_encoder, cross_encoder.name, tmp_path_factory.mktemp("scoring")) as server:
        yield server


@pytest.fixture(scope="module")
def up(pooled: EngineServer, scoring: EngineServer, minilm: Path, cross_encoder: Path) -> Iterator[Up]:
    """A service whose only workers that get work are in front of these servers."""
    embed = f"{minilm},{cross_encoder}"
    with running_up("--workers", "0", MAGNUS_EMBED=embed) as up:
        database = make_engine(up.secrets()["database_url"])
        with make_sessions(database)() as session, ExitStack() as workers:
            assert all(set_drained(session, own, True) for own in ("embed-1", "embed-2"))
            for name, server in ((minilm.name, pooled), (cross_encoder.name, scoring)):
                workers.enter_context(worker(up, name, embed, server))
                eventually(partial(set_drained, session, f"on-{name}", False))
            yield up
            served_by = set(session.scalars(text("select worker from batches")))
        database.dispose()
    assert served_by == {f"on-{minilm.name}", f"on-{cross_encoder.name}"}


@contextmanager
def worker(up: Up, model: str, embed: str, server: EngineServer) -> Iterator[None]:
    """A worker for this model in front of a server."""
    known = {"MAGNUS_DATABASE_URL": up.secrets()["database_url"], "MAGNUS_REDIS_URL": up.secrets()["redis_url"]}
    command = [MAGNUS, "worker", "--name", f"on-{model}", "--embed", model, "--engine-url", server.url]
    with subprocess.Popen(command, env={**os.environ, **known, "MAGNUS_EMBED": embed}) as process:
        try:
            yield
        finally:
            process.terminate()


def test_a_service_in_front_of_vllm_gives_the_librarys_vectors_and_scores(
    up: Up, minilm: Path, cross_encoder: Path
) -> None:
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key, timeout=120) as client:
        made = client.embeddings.create(model=minilm.name, input=list(TEXTS), extra_body={"truncate": True}).data
    found = np.array([one.embedding for one in sorted(made, key=lambda one: one.index)])
    assert np.abs(found - SentenceTransformer(str(minilm), device="cpu").encode(list(TEXTS))).max() < 1e-5
    query = "Which river froze?"
    answer = httpx.post(
        f"{up.url}/v1/score",
        json={"model": cross_encoder.name, "text_1": query, "text_2": list(TEXTS), "truncate": True},
        headers={"Authorization": f"Bearer {up.key}"},
        timeout=120,
    )
    scores = [one["score"] for one in answer.raise_for_status().json()["data"]]
    pairs = [(query, text) for text in TEXTS]
    expected = CrossEncoder(str(cross_encoder), device="cpu").predict(pairs)
    assert np.abs(np.array(scores) - expected).max() < 1e-5

"""Vectors by vLLM's pooling runner through the engine of a worker: those that sentence-transformers computes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from benchmarks.outside_engines.server_processes import EngineServer, running_engine
from inference.embedding.pooling_engine import PoolingEngine
from inference.embedding.pooling_server import PoolingServer
from inference.embedding.text_model import read_text_model
from inference.embedding.vectors import unpacked
from inference.sequences import Sequence
from request_body import Pooling
from tests.engines.tested_engines import TERMS
from tests.real_model.conftest import fetched

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]  # vLLM takes minutes to start where others use the cores too
TEXTS = ("a", "The river froze while the committee argued.", "naïve 東京 🙂", "word " * 100, "longer than read " * 200)


@pytest.fixture(scope="module")
def minilm() -> Path:
    return fetched("minilm")


@pytest.fixture(scope="module", params=("vllm",))
def pooled(request: pytest.FixtureRequest, minilm: Path, tmp_path_factory) -> Iterator[EngineServer]:
    """vLLM with all-MiniLM-L6-v2."""
    terms = replace(TERMS, model=minilm, name="minilm", flags=("--runner", "pooling", "--max-model-len", "256"))
    with running_engine(request.param, terms, tmp_path_factory.mktemp("pooled")) as server:
        yield server


def test_vectors_are_those_of_the_library(pooled: EngineServer, minilm: Path) -> None:
    model = read_text_model("minilm", str(minilm))
    server = PoolingServer(pooled.url, None, model, 60.0)
    engine = PoolingEngine(server.encode, scores_pairs=False, pass_tokens=2048)
    tokens = [min(model.max_tokens, count) for count in model.item_tokens(TEXTS)]
    rows = [
        Sequence(str(number), (), 1, texts=(text,), pooling=Pooling(task="embed", tokens=(count,)))
        for number, (text, count) in enumerate(zip(TEXTS, tokens, strict=True))
    ]
    found = np.concatenate([unpacked(one.text or "", 1) for one in engine.run(rows)[0]])
    expected = np.asarray(SentenceTransformer(str(minilm), device="cpu").encode(list(TEXTS)))
    assert np.abs(found - expected).max() < 1e-5

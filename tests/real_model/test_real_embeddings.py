"""Vectors of all-MiniLM-L6-v2 through the engine are those that sentence-transformers itself computes."""

import random
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from inference.embedding.model_loading import load_encode
from inference.embedding.pooling_engine import PoolingEngine
from inference.embedding.text_model import read_text_model
from inference.embedding.vectors import unpacked
from inference.engine_requests import PoolingRequest
from request_body import Pooling

pytestmark = pytest.mark.timeout(300)

WORDS = [
    "the",
    "river",
    "froze",
    "while",
    "committee",
    "argued",
    "seventeen",
    "bridges,",
    "naïve",
    "東京",
    "café",
    "🙂",
]


def test_vectors_of_many_rows_are_those_of_the_library(minilm: Path) -> None:
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=chance.choice((1, 3, 12, 40, 150, 400)))) for _ in range(120)]
    model = read_text_model("minilm", str(minilm))
    assert (model.dimensions, model.max_tokens, model.scores_pairs) == (384, 256, False)
    library = SentenceTransformer(str(minilm), device="cpu")
    tokens = [min(256, count) for count in model.item_tokens(texts)]
    assert tokens == [len(one) for one in library.tokenizer(texts, truncation=True)["input_ids"]]
    engine = PoolingEngine(load_encode(model, "cpu"), scores_pairs=False, pass_tokens=2048)
    rows = [
        PoolingRequest(
            f"r{begin}",
            tuple(texts[begin : begin + 7]),
            Pooling(tokens=tuple(tokens[begin : begin + 7])),
        )
        for begin in range(0, len(texts), 7)
    ]
    ended, _ = engine.run(rows)
    found = np.concatenate([unpacked(one.text or "", len(row.texts)) for one, row in zip(ended, rows, strict=True)])
    assert np.abs(found - np.asarray(library.encode(texts))).max() < 1e-6

"""Vectors and scores by a server: what it is asked, how its answers are read, and what happens while it is away."""

import json
from base64 import b64encode
from typing import Any, cast

import numpy as np
import pytest

from inference.embedding.pooling_server import PoolingServer
from inference.embedding.text_model import TextModel
from inference.remote.server_errors import (
    MOST_LOSSES,
    RowRefused,
    ServerFailed,
    ServerLost,
    ServerLostOften,
    ServerUnusable,
)
from tests.integration.database_stage import eventually
from tests.integration.stub_engine_server import StubServer

VECTORS, SCORES = "/v1/embeddings", "/score"


def text_model(*, scores_pairs: bool = False, max_tokens: int = 512) -> TextModel:
    return TextModel("m", "", scores_pairs, max_tokens, 2, "query: ", cast(Any, None), cast(Any, None))


def vectors(*values: list[float]) -> str:
    """An answer, whose items come in another order than the texts."""
    items = [
        {"index": number, "embedding": b64encode(np.array(one, "<f4").tobytes()).decode()}
        for number, one in enumerate(values)
    ]
    return json.dumps({"data": items[::-1]})


@pytest.fixture
def server(server: StubServer) -> StubServer:
    server.pages["/v1/models"] = json.dumps({"data": [{"id": "m", "max_model_len": 512}]})
    return server


def test_each_text_gets_its_vector_with_the_models_own_prompt_before_it(server: StubServer):
    server.posts[VECTORS] = 200, vectors([1, 2], [3, 4])
    found = PoolingServer(server.url, None, text_model(), 5.0).encode(["a", "b"])
    assert found.tolist() == [[1, 2], [3, 4]]
    assert (server.bodies[0]["model"], server.bodies[0]["input"]) == ("m", ["query: a", "query: b"])


def test_each_pair_gets_its_score(server: StubServer):
    server.posts[SCORES] = 200, json.dumps({"data": [{"index": 1, "score": 0.5}, {"index": 0, "score": 0.25}]})
    scorer = PoolingServer(server.url, None, text_model(scores_pairs=True), 5.0)
    assert scorer.encode([("q", "a"), ("r", "b")]).tolist() == [0.25, 0.5]
    assert (server.bodies[0]["text_1"], server.bodies[0]["text_2"]) == (["q", "r"], ["a", "b"])


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (503, "{}"),
        (404, "{}"),
        (400, "no such model"),
        (200, "no JSON"),
        (200, vectors([1], [2, 3])),
        (200, vectors([1, 2, 3], [4, 5, 6])),
    ],
)
def test_a_server_that_fails_or_answers_something_else_is_set_aside_until_a_trial_succeeds(
    server: StubServer, status: int, answer: str
):
    server.posts[VECTORS] = status, answer
    encoder = PoolingServer(server.url, None, text_model(), 5.0)
    with pytest.raises(ServerLost):
        encoder.encode(["a", "b"])
    assert encoder.fault
    server.posts[VECTORS] = 200, vectors([1, 2])
    eventually(lambda: encoder.fault is None)


@pytest.mark.parametrize("answer", [vectors([1, 2], [3, float("nan")]), vectors([1, 2])])
def test_texts_without_values_or_with_no_numbers_have_failed_if_the_server_then_answers_a_trial(
    server: StubServer, answer: str
):
    server.posts[VECTORS] = 200, vectors([1, 2])
    server.posts_once.append((200, answer))
    encoder = PoolingServer(server.url, None, text_model(), 5.0)
    with pytest.raises(ServerFailed):
        encoder.encode(["a", "b"])
    assert encoder.fault is None


def test_what_the_server_refuses_is_refused_with_its_words_and_it_stays_usable(server: StubServer):
    server.posts[VECTORS] = 200, vectors([1, 2])
    server.posts_once.append((400, "this text is too long"))
    encoder = PoolingServer(server.url, None, text_model(), 5.0)
    with pytest.raises(RowRefused, match="this text is too long"):
        encoder.encode(["a"])
    assert encoder.fault is None


def test_a_server_that_reads_less_of_a_text_than_the_model_is_not_used(server: StubServer):
    with pytest.raises(ServerUnusable, match="at most 512 tokens of a text, and the model 1024"):
        PoolingServer(server.url, None, text_model(max_tokens=1024), 5.0)


def test_texts_that_are_never_answered_have_failed_if_the_server_answers_a_trial(server: StubServer):
    server.posts[VECTORS] = 200, vectors([1, 2])
    server.slow_posts = 1
    encoder = PoolingServer(server.url, None, text_model(), 0.3)
    with pytest.raises(ServerFailed, match="ReadTimeout"):
        encoder.encode(["a"])
    assert encoder.fault is None


def test_texts_with_which_the_server_is_lost_again_and_again_are_suspects(server: StubServer):
    server.posts[VECTORS] = 200, vectors([1, 2])
    encoder = PoolingServer(server.url, None, text_model(), 0.3)
    for loss in range(1, MOST_LOSSES + 1):
        server.slow_posts = 2  # the texts, and the trial
        with pytest.raises(ServerLost if loss < MOST_LOSSES else ServerLostOften):
            encoder.encode(["a"])
        eventually(lambda: encoder.fault is None)
    assert encoder.encode(["b"]).tolist() == [[1, 2]]

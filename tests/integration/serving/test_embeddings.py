"""Vectors, scores and rankings by the official client and over HTTP, computed by real models and a worker's threads."""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import openai
import pytest
import torch
from openai import OpenAI
from sentence_transformers import CrossEncoder, SentenceTransformer

from inference.embedding.model_loading import load_encode
from inference.embedding.pooling_engine import PoolingEngine
from inference.embedding.text_model import read_text_model
from inference.engine_errors import UnreadableModel
from inference.local.loading.model_loading import LoadedModel
from inference.prompts.prompt_format import load_prompt_format
from models.connections.session import make_sessions
from models.operations import operator_jobs
from settings import Settings
from tests.integration.api_service import Api
from tests.integration.bulk_stage import BulkStage, counts, create, results
from tests.integration.database_stage import Stage, eventually
from tests.integration.sentence_models import DIMENSION, POSITIONS, make_cross_encoder, make_sentence_model
from tests.integration.serving_worker import Serving

TEXTS = ["red house", "green river cloud", "b", "the red house by the river " * 5]


@dataclass(frozen=True)
class Models:
    """An embedding model and a cross-encoder, by their directories."""

    vectors: Path
    scores: Path

    def expected(self, texts: list[str]) -> np.ndarray:
        """What the library itself computes of these texts."""
        return np.asarray(SentenceTransformer(str(self.vectors), device="cpu").encode(texts))

    def expected_scores(self, query: str, documents: list[str]) -> np.ndarray:
        """What the library itself computes of these pairs."""
        scorer = CrossEncoder(str(self.scores), device="cpu")
        return np.asarray(scorer.predict([(query, one) for one in documents]))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("models")
    return Models(make_sentence_model(directory), make_cross_encoder(directory))


@pytest.fixture
def web_settings(web_settings: Settings, models: Models) -> Settings:
    return web_settings.model_copy(update={"embed": f"{models.vectors},{models.scores}"})


def serving(api: Api, directory: Path) -> Serving:
    """A worker's threads on this model."""
    model = read_text_model(directory.name, str(directory))
    encode = load_encode(model, "cpu")
    return Serving(
        Stage(api.engine),
        cast(LoadedModel, SimpleNamespace(delta_bytes=1)),
        load_prompt_format(str(directory)),
        kv_tokens=10**6,
        make_engine=lambda: PoolingEngine(encode, model.scores_pairs, pass_tokens=256),
        model=directory.name,
        name=directory.name,
    )


@pytest.fixture
def workers(api: Api, models: Models) -> Iterator[None]:
    """Serves whatever is queued for either model."""
    by_model = {one.name: serving(api, one) for one in (models.vectors, models.scores)}
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            for name, worker in by_model.items():
                queued = api.sql("select id from requests where status = 'queued' and model = :name", name=name)
                if queued:
                    worker.serve(*(row.id for row in queued), joins=True)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    stop.set()
    thread.join()
    for worker in by_model.values():
        worker.close()


@pytest.mark.usefixtures("workers")
def test_the_official_clients_vectors_are_those_of_the_library(api: Api, client: OpenAI, models: Models) -> None:
    made = client.embeddings.create(model="sentence-model", input=TEXTS)  # the client asks for base64
    assert [one.index for one in made.data] == [0, 1, 2, 3]
    expected = models.expected(TEXTS)
    assert np.abs(np.array([one.embedding for one in made.data]) - expected).max() < 1e-6
    as_numbers = client.embeddings.create(
        model="sentence-model", input=TEXTS[0], encoding_format="float", dimensions=DIMENSION, user="u1"
    )
    assert np.abs(np.array(as_numbers.data[0].embedding) - expected[0]).max() < 1e-6
    tokens = [len(one) for one in SentenceTransformer(str(models.vectors)).tokenizer(TEXTS)["input_ids"]]
    assert (made.model, made.object, made.usage.prompt_tokens) == ("sentence-model", "list", sum(tokens))
    assert as_numbers.usage.total_tokens == tokens[0]
    ((requests, prompt_tokens, answer_tokens),) = api.sql(
        "select sum(requests), sum(prompt_tokens), sum(answer_tokens) from usage_entries where model = 'sentence-model'"
    )
    assert (requests, prompt_tokens, answer_tokens) == (2, sum(tokens) + tokens[0], 0)


@pytest.mark.usefixtures("workers")
def test_a_rerank_is_ordered_by_the_cross_encoders_scores(api: Api, models: Models) -> None:
    asked = {"model": "cross-encoder", "query": "which river", "documents": TEXTS}
    answer = api.call("POST", "/v1/rerank", json=asked | {"top_n": 3}).json
    scores = models.expected_scores("which river", TEXTS)
    order = np.argsort(-scores)[:3]
    assert [one["index"] for one in answer["results"]] == order.tolist()
    assert [one["relevance_score"] for one in answer["results"]] == pytest.approx(scores[order].tolist(), abs=1e-6)
    assert [one["document"]["text"] for one in answer["results"]] == [TEXTS[number] for number in order]
    pairs = {"model": "cross-encoder", "text_1": "which river", "text_2": TEXTS}
    given = api.call("POST", "/v1/score", json=pairs).json
    assert [one["score"] for one in given["data"]] == pytest.approx(scores.tolist(), abs=1e-6)
    assert given["usage"] == answer["usage"]


@pytest.mark.usefixtures("workers")
def test_an_embedding_model_scores_by_the_cosine_of_its_vectors(api: Api, models: Models) -> None:
    asked = {"model": "sentence-model", "text_1": TEXTS[0], "text_2": TEXTS}
    given = api.call("POST", "/v1/score", json=asked).json
    vectors = models.expected(TEXTS)
    cosines = vectors @ vectors[0] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[0])
    assert [one["score"] for one in given["data"]] == pytest.approx(cosines.tolist(), abs=1e-6)


@pytest.mark.usefixtures("workers")
def test_a_text_that_is_too_long_is_refused_or_read_up_to_the_models_length(client: OpenAI, models: Models) -> None:
    long = "red house " * POSITIONS
    with pytest.raises(
        openai.BadRequestError, match=f"at most {POSITIONS} tokens of a text, but 'input' has"
    ) as caught:
        client.embeddings.create(model="sentence-model", input=long)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")
    made = client.embeddings.create(model="sentence-model", input=long, extra_body={"truncate": True})
    assert np.abs(np.array(made.data[0].embedding) - models.expected([long])[0]).max() < 1e-6
    assert made.usage.prompt_tokens == POSITIONS


@pytest.mark.usefixtures("workers")
def test_lines_of_a_batch_have_vectors_and_errors(api: Api, client: OpenAI, bulk: BulkStage, models: Models) -> None:
    def line(name: str, **body: Any) -> dict[str, Any]:
        body = {"model": "sentence-model"} | body
        return {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": body}

    lines = [
        line("one", input=TEXTS[0]),
        line("two", input=TEXTS[1:3], encoding_format="base64"),
        line("long", input="red " * POSITIONS),
        line("chat", input="red", model="words"),
    ]
    batch = create(client, lines, endpoint="/v1/embeddings")
    assert bulk.feed() == 4
    eventually(lambda: not api.sql("select from requests where status in ('queued', 'in_progress')"))
    bulk.count()
    ended = client.batches.retrieve(batch.id)
    assert (ended.status, counts(ended)) == ("completed", (4, 2, 2))
    found, expected = results(client, ended.output_file_id), models.expected(TEXTS)
    one = found["one"]["response"]["body"]["data"][0]["embedding"]
    assert np.abs(np.array(one) - expected[0]).max() < 1e-6
    two = found["two"]["response"]["body"]["data"][1]["embedding"]
    assert np.abs(np.frombuffer(base64.b64decode(two), "<f4") - expected[2]).max() < 1e-6
    errors = results(client, ended.error_file_id)
    assert errors["long"]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert errors["chat"]["response"]["body"]["error"]["code"] == "model_not_found"


@pytest.mark.usefixtures("workers")
def test_a_retry_with_the_same_key_gets_the_same_answer_from_the_same_request(api: Api) -> None:
    asked = {"model": "sentence-model", "input": "red house"}
    headers = {"Idempotency-Key": "k1"}
    first, again = (api.call("POST", "/v1/embeddings", json=asked, headers=headers).json for _ in range(2))
    assert first == again
    assert api.sql("select count(*) from requests") == [(1,)]
    refused = api.call("POST", "/v1/embeddings", json=asked | {"input": "river"}, headers=headers)
    assert refused.status_code == 422
    stored = api.call("GET", f"/v1/responses/resp_{first['id'].removeprefix('embd-')}").json
    assert (stored["status"], stored["metadata"]) == ("completed", {"application": "embeddings"})


@pytest.mark.usefixtures("workers")
def test_vectors_are_their_tenants_own(api: Api) -> None:
    asked, headers = {"model": "sentence-model", "input": "river"}, {"Idempotency-Key": "shared"}
    other = api.other_tenant()
    for one in (api, other):
        assert one.call("POST", "/v1/embeddings", json=asked, headers=headers).status_code == 200
    rows = dict(api.sql("select tenant, id from requests"))
    assert len(rows) == 2  # one key of two tenants
    assert other.call("GET", f"/v1/responses/{rows['acme']}").status_code == 404
    assert len(other.call("GET", "/v1/responses").json["data"]) == 1


def test_models_are_listed_with_what_they_compute(client: OpenAI) -> None:
    listed = {one.id: one.to_dict()["magnus"] for one in client.models.list()}
    assert {name: (one["task"], one["dimensions"], one["max_prompt_tokens"]) for name, one in listed.items()} == {  # type: ignore[index]
        "words": ("generate", None, 50),
        "sentence-model": ("embed", DIMENSION, POSITIONS),
        "cross-encoder": ("score", None, POSITIONS),
    }
    assert client.models.retrieve("cross-encoder").id == "cross-encoder"


def test_calls_for_another_kind_of_model_are_refused_with_the_right_call(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="'sentence-model' generates no answers: use /v1/embeddings"):
        client.chat.completions.create(model="sentence-model", messages=[{"role": "user", "content": "hello"}])
    with pytest.raises(openai.NotFoundError, match="'words' computes no embeddings"):
        client.embeddings.create(model="words", input="hello")
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.embeddings.create(model="sentence-model", input=[1, 2, 3])


@pytest.mark.unanswered
def test_a_call_that_nobody_serves_is_cancelled_and_a_queued_one_is_moved_to_no_other_model(api: Api) -> None:
    asked = {"model": "sentence-model", "input": "red house"}
    assert api.call("POST", "/v1/embeddings", json=asked).status_code == 504
    assert api.call("POST", "/v1/embeddings", json=asked, headers={"Idempotency-Key": "k1"}).status_code == 504
    with make_sessions(api.engine).begin() as session:
        assert operator_jobs.move_waiting(session, "sentence-model", "words") == 0
    stored = api.sql("select status, model, tenant, limit_tokens from requests order by arrived_at")
    assert stored == [(one, "sentence-model", "acme", 1) for one in ("cancelled", "queued")]


def test_a_model_whose_files_allow_more_than_the_library_reads_is_not_loaded(models: Models, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    copy.mkdir()
    for path in models.scores.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    model = read_text_model("model", str(copy))
    config = json.loads((copy / "tokenizer_config.json").read_text()) | {"model_max_length": 64}
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UnreadableModel, match=f"its files allow {POSITIONS} tokens, but sentence-transformers 64"):
        load_encode(model, "cpu")

"""From the body of a call for vectors or scores to the row that is stored, and from the answered row to the answer."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from inference.embedding.vectors import packed
from inference.prompts.prompt_format import PromptFormat
from models.client_requests import RequestView
from models.new_requests import NewRequest
from models.tables import StoredRequest
from protocol.client_errors import InvalidRequest, NotAnswered
from protocol.limits.prompt_limits import PromptLimits
from protocol.limits.text_limits import text_limits_of
from protocol.requests.submission import accepted_request
from protocol.texts.text_objects import embeddings_of, ranking_of, scores_of
from protocol.texts.text_schemas import CreateEmbeddings, CreateRerank, CreateScore
from protocol.texts.text_submissions import embeddings_submission, rerank_submission, score_submission
from settings import Settings
from tests.unit.inference.embedding.text_directories import write_pair_model, write_text_model
from tests.unit.protocol.limits.test_prompt_limits import WORDS

Made = CreateEmbeddings | CreateRerank | CreateScore


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> PromptLimits:
    directory = tmp_path_factory.mktemp("models")
    write_text_model(directory / "small")
    write_pair_model(directory / "pairs")
    texts = text_limits_of(Settings(embed=f"{directory / 'small'},{directory / 'pairs'}"))
    return PromptLimits("words", PromptFormat("words", WORDS.to_str(), None), 50, 9, texts=texts)


def stored(limits: PromptLimits, made: Made) -> NewRequest:
    """The row of a call."""
    if isinstance(made, CreateEmbeddings):
        return accepted_request(limits, None, embeddings_submission(made, "acme", limits))
    if isinstance(made, CreateRerank):
        return accepted_request(limits, None, rerank_submission(made, "acme", limits))
    return accepted_request(limits, None, score_submission(made, "acme", limits))


def answered(limits: PromptLimits, made: Made, values: Sequence[Any]) -> list[RequestView]:
    """The row of a call with these values as its answer."""
    row, now = stored(limits, made), datetime(2026, 1, 1, tzinfo=UTC)
    request = StoredRequest(
        id="resp_1",
        arrived_at=now,
        model=row.model,
        input=row.input,
        body=row.body,
        prompt_tokens=row.prompt_tokens,
        output_text=packed(np.array(values, np.float32)),
    )
    return [RequestView(request, None, 0, now)]


def test_a_call_for_vectors_is_one_request_of_a_known_length(limits: PromptLimits) -> None:
    asked = CreateEmbeddings.model_validate(
        {
            "model": "small",
            "input": ["red house", "river"],
            "service_tier": "flex",
            "magnus": {"priority": 3, "deadline_s": 9.0},
        }
    )
    row = stored(limits, asked)
    assert json.loads(row.input) == ["red house", "river"]
    assert (row.tenant, row.model, row.application) == ("acme", "small", "embeddings")
    assert (row.prompt_tokens, row.input_tokens, row.limit_tokens) == (7, 7, 1)
    assert (row.kind, row.tier, row.priority, row.deadline_s, row.needs) == ("vectors", "flex", 3, 9.0, ())
    assert row.body["pooling"] == {"tokens": [4, 3]}
    named = CreateEmbeddings(model="small", input="river", metadata={"application": "search"})
    assert (stored(limits, named).application, stored(limits, named).input) == ("search", '["river"]')


@pytest.mark.parametrize("form", ["float", "base64"])
def test_vectors_come_as_numbers_or_as_base64_in_the_order_of_the_texts(
    form: Literal["float", "base64"], limits: PromptLimits
) -> None:
    asked = CreateEmbeddings(model="small", input=["red house", "river"], encoding_format=form, dimensions=4)
    vectors = [[0.5, 1.0, 2.0, 4.0], [0.25, 0, 0, -1]]
    answer = embeddings_of(answered(limits, asked, vectors))
    expected = vectors if form == "float" else [packed(np.array(one, np.float32)) for one in vectors]
    assert [(one.index, one.embedding) for one in answer.data] == list(enumerate(expected))
    assert (answer.id, answer.object, answer.model, answer.created) == ("embd-1", "list", "small", 1767225600)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)


def test_dimensions_that_the_model_has_not_are_refused(limits: PromptLimits) -> None:
    with pytest.raises(InvalidRequest, match="'small' have 4 values, and this service does not shorten them") as caught:
        stored(limits, CreateEmbeddings(model="small", input="river", dimensions=2))
    assert caught.value.param == "dimensions"


def test_the_best_documents_come_first_and_equal_ones_in_their_order(limits: PromptLimits) -> None:
    documents = ["sun", {"text": "rain"}, "wind", "snow"]
    asked = CreateRerank.model_validate({"model": "pairs", "query": "what falls", "documents": documents})
    assert stored(limits, asked).body["pooling"] == {"tokens": [6] * 4, "queries": 1}
    answer = ranking_of(answered(limits, asked, [0.25, 0.75, 0.25, 1.0]))
    assert [(one.index, one.relevance_score) for one in answer.results] == [(3, 1.0), (1, 0.75), (0, 0.25), (2, 0.25)]
    assert [one.document and one.document.text for one in answer.results] == ["snow", "rain", "sun", "wind"]
    assert (answer.id, answer.model, answer.usage.prompt_tokens) == ("rerank-1", "pairs", 24)


def test_a_rerank_may_want_only_the_best_without_their_texts(limits: PromptLimits) -> None:
    asked = CreateRerank(model="pairs", query="q", documents=["a", "b", "c"], top_n=2, return_documents=False)
    answer = ranking_of(answered(limits, asked, [0.25, 0.75, 0.5])).model_dump()
    assert answer["results"] == [{"index": 1, "relevance_score": 0.75}, {"index": 2, "relevance_score": 0.5}]


def test_scores_belong_to_one_text_with_many_or_to_pairs(limits: PromptLimits) -> None:
    one = CreateScore(model="small", text_1="river", text_2=["red house", "tree"])
    assert stored(limits, one).body["pooling"] == {"tokens": [3, 4, 3], "queries": 1}
    each = CreateScore(model="pairs", text_1=["river", "a b"], text_2=["red house", "tree"])
    assert stored(limits, each).body["pooling"] == {"tokens": [6, 6], "queries": 2}
    answer = scores_of(answered(limits, each, [0.5, 0.25]))
    assert [(one.index, one.score) for one in answer.data] == [(0, 0.5), (1, 0.25)]
    assert (answer.id, answer.usage.total_tokens) == ("score-1", 12)
    with pytest.raises(ValidationError, match="as many as text_2, but 2 and 3"):
        CreateScore(model="small", text_1=["a", "b"], text_2=["a", "b", "c"])


def test_errors_name_the_field_of_the_text(limits: PromptLimits) -> None:
    long = "a b c d e f g"
    for made, field in (
        (CreateEmbeddings(model="small", input=long), "input"),
        (CreateEmbeddings(model="small", input=["a", long]), "input[1]"),
        (CreateRerank(model="pairs", query="q", documents=["a", long]), "documents[1]"),
        (CreateRerank(model="small", query=long, documents=["a"]), "query"),
        (CreateScore(model="small", text_1="a", text_2=["a", long]), "text_2[1]"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            stored(limits, made)
        assert caught.value.param == field


@pytest.mark.parametrize(
    "input", ["", [], [""], ["a", ""], [1, 2], [[1], [2]], ["a", 5], {"text": "a"}, None, "a\0b", ["a"] * 2049]
)
def test_inputs_without_text_and_token_ids_are_refused(input: object) -> None:
    with pytest.raises(ValidationError):
        CreateEmbeddings.model_validate({"model": "small", "input": input})


def test_a_damaged_answer_is_no_answer(limits: PromptLimits) -> None:
    (view,) = answered(limits, CreateEmbeddings(model="small", input=["a", "b", "c"]), [1.0, 2.0])
    with pytest.raises(NotAnswered, match="cannot be read"):
        embeddings_of([view])
    view.request.body = {}
    with pytest.raises(NotAnswered, match="no request for vectors"):
        embeddings_of([view])


LONG = "word " * 400


@pytest.mark.parametrize(
    "body",
    [
        {"model": "small", "input": LONG, "truncation": True, "input_type": "query", "normalized": True},
        {"model": "small", "input": LONG, "truncate": True, "task": "retrieval.query", "truncation": None},
        {"model": "pairs", "query": "a", "documents": [LONG], "max_tokens_per_doc": 4096},
    ],
)
def test_a_text_that_is_too_long_is_cut_by_whichever_field_asks_for_it(
    limits: PromptLimits, body: dict[str, Any]
) -> None:
    kind = CreateRerank if "query" in body else CreateEmbeddings
    plain = {name: value for name, value in body.items() if name in ("model", "input", "query", "documents")}
    with pytest.raises(InvalidRequest, match="Please shorten"):
        stored(limits, kind.model_validate(plain))
    assert stored(limits, kind.model_validate(body)).prompt_tokens > 0


def test_vectors_that_are_not_normalized_are_refused() -> None:
    with pytest.raises(ValidationError):
        CreateEmbeddings.model_validate({"model": "small", "input": "a", "normalized": False})

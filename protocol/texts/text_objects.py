"""Answers of /v1/embeddings, /v1/rerank and /v1/score, made from stored requests."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from pydantic_core import from_json

from inference.embedding.vectors import LITTLE_ENDIAN, Vectors, unpacked
from models.client_requests import RequestView
from protocol.api_objects import ApiObject
from protocol.client_errors import NotAnswered
from request_body import Pooling, read_body


class TextUsage(ApiObject):
    """The tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(ApiObject):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32")


class EmbeddingList(ApiObject):
    """The vectors of a call, in the order of its texts."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: TextUsage


class RankedDocument(ApiObject):
    """A document of a rerank, as it was sent."""

    text: str


class RankedResult(ApiObject):
    """The score of a document, by its place in the call."""

    index: int
    relevance_score: float
    document: RankedDocument | None = Field(default=None, exclude_if=lambda document: document is None)


class Ranking(ApiObject):
    """The documents of a call, the best first."""

    id: str
    model: str
    results: list[RankedResult]
    usage: TextUsage


class PairScore(ApiObject):
    """The score of one pair."""

    object: Literal["score"] = "score"
    index: int
    score: float


class ScoreList(ApiObject):
    """The scores of a call's pairs, in their order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: TextUsage


def embeddings_of(views: Sequence[RequestView]) -> EmbeddingList:
    """Returns the answer to a call for vectors."""
    (view,) = views
    pooling = pooling_of(view)
    vectors = values_of(view, len(pooling.tokens))
    data = [
        Embedding(index=number, embedding=_base64(vector) if pooling.base64 else vector.tolist())
        for number, vector in enumerate(vectors)
    ]
    request = view.request
    return EmbeddingList(
        id=request.id.replace("resp_", "embd-", 1),
        created=int(request.arrived_at.timestamp()),
        model=request.model,
        data=data,
        usage=usage_of_texts(view),
    )


def ranking_of(views: Sequence[RequestView]) -> Ranking:
    """Returns the answer to a rerank; equal documents keep their order."""
    (view,) = views
    pooling, documents = pooling_of(view), from_json(view.request.input or "[]")
    documents = documents[pooling.queries :]
    scores = values_of(view, 1)[0]
    results = [
        RankedResult(
            index=number,
            relevance_score=float(scores[number]),
            document=RankedDocument(text=documents[number]) if pooling.returns_documents and documents else None,
        )
        for number in np.argsort(-scores, kind="stable")[: pooling.top_n].tolist()
    ]
    return Ranking(
        id=view.request.id.replace("resp_", "rerank-", 1),
        model=view.request.model,
        results=results,
        usage=usage_of_texts(view),
    )


def scores_of(views: Sequence[RequestView]) -> ScoreList:
    """Returns the answer to a call for scores."""
    (view,) = views
    request = view.request
    return ScoreList(
        id=request.id.replace("resp_", "score-", 1),
        created=int(request.arrived_at.timestamp()),
        model=request.model,
        data=[PairScore(index=number, score=score) for number, score in enumerate(values_of(view, 1)[0].tolist())],
        usage=usage_of_texts(view),
    )


def pooling_of(view: RequestView) -> Pooling:
    """Returns the options of a stored request for vectors or scores; raises NotAnswered for another request."""
    pooling = read_body(view.request.body).pooling
    if pooling is None:
        raise NotAnswered(f"{view.request.id} is no request for vectors or scores.")
    return pooling


def values_of(view: RequestView, rows: int) -> Vectors:
    """Returns the values of an answer, (rows, values); raises NotAnswered if they are deleted or damaged."""
    try:
        values = unpacked(view.request.output_text or "", rows)
    except ValueError as error:
        raise NotAnswered(f"The answer of {view.request.id} cannot be read.") from error
    if not np.isfinite(values).all():
        raise NotAnswered(f"The answer of {view.request.id} has values that are no numbers.")
    return values


def usage_of_texts(view: RequestView) -> TextUsage:
    """Returns the tokens that the model read."""
    return TextUsage(prompt_tokens=view.request.prompt_tokens, total_tokens=view.request.prompt_tokens)


def _base64(vector: Vectors) -> str:
    return b64encode(vector.astype(LITTLE_ENDIAN).tobytes()).decode()

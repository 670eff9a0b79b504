"""/v1/embeddings, /v1/rerank and /v1/score: each call is a request like any other, and waits for its answer."""

from collections.abc import Callable
from typing import TypeVar

from apiflask import APIBlueprint
from flask import request

from models.client_requests import RequestView
from protocol.limits.prompt_limits import PromptLimits
from protocol.requests.submission import Submission
from protocol.texts.text_objects import EmbeddingList, Ranking, ScoreList, embeddings_of, ranking_of, scores_of
from protocol.texts.text_schemas import CreateEmbeddings, CreateRerank, CreateScore
from protocol.texts.text_submissions import embeddings_submission, rerank_submission, score_submission
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant
from webapp.requests.awaited_answers import wait_for_answers

STATUSES = [400, 401, 403, 404, 413, 422, 429, 502, 503, 504]
Sent = TypeVar("Sent")
api = APIBlueprint("texts", __name__, url_prefix="/v1", tag="Embeddings")


@api.post("/embeddings")
@api.input(CreateEmbeddings)
@api.output(EmbeddingList)
@api.doc(summary="Compute vectors of texts", security="ApiKey", responses=STATUSES)
def embeddings(json_data: CreateEmbeddings) -> EmbeddingList:
    """Waits for the vector of each text."""
    return embeddings_of(_answered(json_data, embeddings_submission))


@api.post("/rerank")
@api.input(CreateRerank)
@api.output(Ranking)
@api.doc(summary="Rank documents by a query", security="ApiKey", responses=STATUSES)
def rerank(json_data: CreateRerank) -> Ranking:
    """Waits for the documents' scores: a cross-encoder's, or the cosines of an embedding model's vectors."""
    return ranking_of(_answered(json_data, rerank_submission))


@api.post("/score")
@api.input(CreateScore)
@api.output(ScoreList)
@api.doc(summary="Score pairs of texts", security="ApiKey", responses=STATUSES)
def score(json_data: CreateScore) -> ScoreList:
    """Waits for the score of each pair, which is computed as in a rerank."""
    return scores_of(_answered(json_data, score_submission))


def _answered(
    body: Sent, submission_of: Callable[[Sent, str, PromptLimits, str | None], Submission]
) -> list[RequestView]:
    limits, key = current_context().prompt_limits, request.headers.get("Idempotency-Key")
    return wait_for_answers([submission_of(body, current_tenant(), limits, key)])
